"""A run has the losses of 0.5.0, whose checkpoint opens, evaluates and resumes; older ones are refused.

`old_checkpoint/relative.ckpt` was written at step 15 of a run of 30 steps. `expected.json` has the
results of 0.5.0: losses of the checkpoint at three memory lengths, and of the second half of the run.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.in_process import success
from tests.training.small_run import logged_rows
from txl_lightning import load_trained, train
from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError

FOLDER = Path(__file__).parent / "old_checkpoint"
CHECKPOINT = FOLDER / "relative.ckpt"
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))
FLOAT32 = 1e-5  # the losses were computed in float32 on another CPU


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the text of the run, which the checkpoint names as text.txt, into the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [f"line {i}: the square of {i} is {i * i}\n" for i in range(600)]
    path = tmp_path / "text.txt"
    path.write_text("".join(lines))
    return path


def test_it_opens_with_its_config_and_vocabulary() -> None:
    trained = load_trained(CHECKPOINT)
    assert trained.config.encoding.name == EXPECTED["config"]["encoding"]
    assert trained.config.memory.mem_len == EXPECTED["config"]["mem_len"]
    assert "".join(trained.vocabulary.symbols) == EXPECTED["symbols"]


@pytest.mark.parametrize("mem_len", EXPECTED["test_nll_of_step_15"])
@pytest.mark.usefixtures("text")
def test_its_losses_are_those_of_0_5_0(mem_len: str) -> None:
    words = (f"mem_len={mem_len}", "splits=[test]", "hydra.run.dir=evaluation")
    success("evaluate", f"checkpoint={CHECKPOINT}", *words)
    results = json.loads(Path("evaluation/evaluation.json").read_text())
    expected = EXPECTED["test_nll_of_step_15"][mem_len]
    assert results["test"]["nll"] == pytest.approx(expected, rel=FLOAT32)


@pytest.fixture
def config(text: Path) -> Config:
    """Return the config of the run."""
    config = load_trained(CHECKPOINT).config
    config.data.path = str(text)  # type: ignore[attr-defined]
    config.data.cache_dir = "cache"
    return config


def test_a_run_has_the_losses_of_0_5_0(config: Config) -> None:
    metrics = train(config, Path("run"))
    rows = {row["step"]: row for row in logged_rows(Path("run")) if "train/nll" in row}
    for step, expected in EXPECTED["train_nll"].items():
        assert float(rows[step]["train/nll"]) == pytest.approx(expected, rel=FLOAT32)
    for name, expected in EXPECTED["metrics"].items():
        assert metrics[name] == pytest.approx(expected, rel=FLOAT32)


def test_a_resumed_run_ends_like_the_uninterrupted_run_of_0_5_0(config: Config) -> None:
    config.resume = str(CHECKPOINT)
    metrics = train(config, Path("run"))
    rows = {row["step"]: row for row in logged_rows(Path("run")) if "train/nll" in row}
    for step, expected in EXPECTED["train_nll"].items():
        assert float(rows[step]["train/nll"]) == pytest.approx(expected, rel=FLOAT32)
    for name, expected in EXPECTED["metrics"].items():
        assert metrics[name] == pytest.approx(expected, rel=FLOAT32)


def test_a_resumed_run_keeps_the_best_loss_and_the_curve_of_0_5_0(config: Config) -> None:
    folder = Path("old/checkpoints")
    folder.mkdir(parents=True)
    shutil.copy(CHECKPOINT, folder / "last.ckpt")
    shutil.copy(CHECKPOINT, folder / "best.ckpt")
    curve = Path("old/validation.jsonl")
    of_15 = {"steps": 15, "val/nll": 2.5}
    curve.write_text(f"{json.dumps(of_15)}\n{json.dumps({'steps': 20})}\n")
    config.resume = "auto"
    train(config, Path("old"))
    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    assert rows[0] == of_15
    assert [row["steps"] for row in rows[1:]] == [20, 25, 30]


def test_a_checkpoint_before_0_5_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    """Up to 0.4.0 loggers were named without their classes."""
    contents = torch.load(CHECKPOINT, weights_only=True)
    del contents["txl_lightning"]["config"]["logger"]["each"]
    torch.save(contents, tmp_path / "old.ckpt")
    with pytest.raises(OptionError, match=r"^checkpoint=.*old.ckpt: .*0\.5"):
        load_trained(tmp_path / "old.ckpt")
