"""Checkpoints written before the code was rearranged: they load, evaluate, convert and resume as before.

`tests/old_checkpoint/` has the last checkpoints (step 15) of two runs killed at step 17 of 30, and in `expected.json`
the results of that code: the losses of an uninterrupted run, and the results of `txl evaluate` and `txl recl`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from txl_lightning.config.schemas import Config, LoggerConfig
from txl_lightning.evaluation.perplexity.command import run as evaluate
from txl_lightning.evaluation.perplexity.options import EvaluateOptions
from txl_lightning.evaluation.recl.command import run as recl
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.runs.convert.command import run as convert
from txl_lightning.runs.convert.options import ConvertOptions
from txl_lightning.runs.storage import read_file
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

FOLDER = Path(__file__).parents[1] / "old_checkpoint"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
ARMS = sorted(EXPECTED)
ROUNDING = 1e-6  # that code's attention without a gradient was another kernel, which rounds differently


def old_config(directory: Path, arm: str) -> Config:
    """Return the config that the checkpoint holds, with the corpus in `directory`."""
    config = load_trained(FOLDER / f"{arm}.ckpt").config
    config.data.path, config.data.cache_dir = str(directory / "text.txt"), str(directory / "cache")
    return config


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the corpus `text.txt`, which the checkpoints name by a relative path."""
    directory = tmp_path_factory.mktemp("old")
    (directory / "text.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(600)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        yield directory


def assert_equal(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Compare numbers to the tolerance, everything else exactly; `found` may have more keys."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_equal(found[name], value, tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_equal(ours, theirs, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert found == expected


@pytest.mark.parametrize("arm", ARMS)
def test_it_is_evaluated_as_before(directory: Path, tmp_path: Path, arm: str) -> None:
    longer = {"mem_len": 12, "same_length": True} if arm == "relative" else {}
    options = EvaluateOptions(str(FOLDER / f"{arm}.ckpt"), max_segments=20, num_threads=1, **longer)  # type: ignore[arg-type]
    evaluate(options, tmp_path)
    assert_equal(json.loads((tmp_path / "evaluation.json").read_text()), EXPECTED[arm]["evaluation"], ROUNDING)


@pytest.mark.parametrize("arm", ARMS)
def test_its_recl_is_as_before(directory: Path, tmp_path: Path, arm: str) -> None:
    grid = {"first_context": 4, "step": 4, "max_context": 12, "n_positions": 30, "bootstrap": 20}
    options = ReclOptions([str(FOLDER / f"{arm}.ckpt")], store=str(tmp_path / "store"), num_threads=1, **grid)
    options.logger = LoggerConfig(name="none")
    recl(options, tmp_path)
    results = json.loads((tmp_path / "recl.json").read_text())
    expected = EXPECTED[arm]["recl"]
    assert results["contexts"] == expected["contexts"]
    (model,) = results["models"]
    # The code that wrote the reference read a window for each context; windows of other sizes round differently in
    # single precision. Gains are differences of losses, relative to a small one.
    assert_equal(model["nll"], expected["nll"], ROUNDING)
    assert_equal(model["recl"], expected["recl"], 10 * ROUNDING)


@pytest.mark.parametrize("family", ["original", "huggingface"])
def test_it_is_converted_and_back(directory: Path, tmp_path: Path, family: str) -> None:
    config = old_config(directory, "relative")
    config.memory.start = "zeros"

    def to(source: Path, source_format: str, target: Path, target_format: str) -> Path:
        files = {"source": str(source), "source_format": source_format}
        files |= {"target": str(target), "target_format": target_format, "memory_start": "zeros"}
        fields = {name: getattr(config, name) for name in asdict(config)}
        return Path(convert(ConvertOptions(**fields, **files), tmp_path)[0])  # type: ignore[arg-type]

    there = to(FOLDER / "relative.ckpt", "txl", tmp_path / "there", family)
    back = load_trained(to(there, family, tmp_path / "back.ckpt", "txl"))
    weights = load_trained(FOLDER / "relative.ckpt").model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in back.model.state_dict().items())


@pytest.mark.parametrize("arm", ARMS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(directory: Path, tmp_path: Path, arm: str) -> None:
    assert read_file(FOLDER / f"{arm}.ckpt")["global_step"] == 15
    config = old_config(directory, arm)
    config.resume = str(FOLDER / f"{arm}.ckpt")
    metrics = train(config, tmp_path / "run")
    rows = csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines())
    losses = {row["step"]: float(row["train/nll"]) for row in rows if row["train/nll"]}
    expected = {step: nll for step, nll in EXPECTED[arm]["train_nll"].items() if int(step) > 15}
    assert losses == expected
    assert_equal(metrics, EXPECTED[arm]["metrics"], ROUNDING)
    last = read_file(tmp_path / "run/checkpoints/last.ckpt")
    assert set(last["callbacks"]) == set(read_file(FOLDER / f"{arm}.ckpt")["callbacks"])
    assert last["callbacks"]["TrainingCurves"]["tokens"] == EXPECTED[arm]["metrics"]["tokens"]
