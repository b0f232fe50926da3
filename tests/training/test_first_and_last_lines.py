"""Output of a training: four lines, its progress on any terminal, and one line at the end."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures import Output, Patch
from tests.in_process import success
from tests.training.small_run import TINY, tiny_config
from txl_lightning.training.callbacks import RunProgress
from txl_lightning.training.run import train

LATEST = {"train/nll": 3.0, "train/ppl": 20.086, "train/tokens_per_second": 81234.0}


def test_progress_goes_on_through_validation_and_test(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "trainer.progress_bar=true", "trainer.max_steps=2")

    metrics = train(config, tmp_path / "run")

    assert metrics["steps"] == 2


def test_a_run_says_at_once_what_it_does_and_at_the_end_which_way_is_better(tmp_path: Path) -> None:
    tiny_config(tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"word{i} and and {i % 7}\n" for i in range(900)))
    paths = (f"data.path={tmp_path}/text.txt", f"data.cache_dir={tmp_path}/cache", f"hydra.run.dir={tmp_path}/run")
    ended = success("train", *TINY, "data.level=word", "trainer.precision=32-true", *paths)
    first = [line for line in ended.err.splitlines() if re.match("model|data|device|steps", line)]
    splits = r"train [0-9,]+ with [0-9.]+% <unk> \([0-9,]+\), valid .*<unk>.*, test .*<unk> .*"
    assert re.fullmatch(r"model: txl_smoke, 2 layers, [0-9,]+ parameters; relative, recurrence, full loss", first[0])
    assert re.fullmatch(rf"data: text.txt, level word, vocabulary \d+; tokens: {splits}", first[1])
    assert re.fullmatch(r"device: cpu, precision 32-true, 1 of \d+ CPU threads", first[2])
    assert first[3] == "steps: 12, each of 32 tokens (4 streams of 8 tokens)"
    held = "metrics.json, config.yaml, curves (validation.jsonl), checkpoints/best.ckpt"
    best = f"{tmp_path}/run/checkpoints/best.ckpt"
    following = f"next: txl evaluate checkpoint={best} or txl generate checkpoint={best}"
    files = f"lower is better; {held} are in {tmp_path}/run"
    assert ended.out.splitlines()[-3:] == [files, following, f"{tmp_path}/run"]
    assert re.search(r"^test/nll [0-9.]+, test/ppl .*, val/nll", ended.out, re.MULTILINE)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("term", ["xterm", "dumb", None])
def test_progress_fits_a_terminal(columns: int, term: str | None, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", term or "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: term is not None)
    trainer: Any = SimpleNamespace(global_step=0, max_steps=100_000, is_global_zero=True)
    metrics = {"val/nll": 3.1, "val/ppl": 22.198, "val/bpb": 1.5, "val/tokens": 9}
    module: Any = SimpleNamespace(metrics=metrics, latest=LATEST)
    bar = RunProgress()
    bar.setup(trainer, module, "fit")
    bar.on_train_start(trainer, module)
    for trainer.global_step in range(1, 100_001):
        bar.on_train_batch_end(trainer, module)
    bar.on_train_end(trainer, module)
    shown = capsys.readouterr().err
    rewrites = term == "xterm"
    lines = shown.removesuffix("\n").split("\r")[1:] if rewrites else shown.splitlines()
    assert len(lines) == 10 or rewrites
    assert all(len(line) < columns for line in lines)
    assert lines[-1].startswith("100,000/100,000 steps, 0:00:00 left")
    assert (", ppl 20.086, val/ppl 22.198, 81,234 tokens/s, val/bpb 1.500" in lines[-1]) == (columns == 120)
    assert ("val/ppl" in lines[-1]) == (columns > 40)
    assert not rewrites or shown.endswith("\n")
