"""Checkpoints that a run keeps, the one that it resumes from, and its messages."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.fixtures import Output, Patch
from tests.training.small_run import patch_module, tiny_config, trained
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import read_file
from txl_lightning.training import checkpoints
from txl_lightning.training.checkpoints import DurableCheckpointIO, RunCheckpoint, last_good
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train
from txl_lightning.training.start import prepare_directory, refuse_to_replace

VARYING = {"seconds": 0, "peak_memory_bytes": 0}  # by run
OPTIONS = ("checkpoint.every_n_steps=4", "evaluation.max_segments=2", "optimizer.schedule=constant")


def steps(directory: Path) -> dict[str, int]:
    """Return the step of each checkpoint."""
    return {path.name: read_file(path)["global_step"] for path in sorted(directory.glob("*.ckpt"))}


def worsen(monkeypatch: Patch, *at: int) -> None:
    """Let the validations after these steps be the worst for the checkpoints that keep the best."""
    original = RunCheckpoint._monitor_candidates

    def monitored(checkpoint: RunCheckpoint, trainer: Any) -> dict[str, torch.Tensor]:
        losses = original(checkpoint, trainer)
        if trainer.global_step in at:
            losses["val/nll"] = torch.tensor(math.inf)
        return losses

    monkeypatch.setattr(RunCheckpoint, "_monitor_candidates", monitored)


def contents_of(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Copy a run of 12 steps, validated after 5, 10 and 12."""
    shutil.copytree(trained(*OPTIONS), tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def test_saved_every_n_steps_at_validation_and_at_the_end(tmp_path: Path) -> None:
    name = "save_checkpoint"
    save = DurableCheckpointIO.save_checkpoint
    with patch.object(DurableCheckpointIO, name, autospec=True, side_effect=save) as saved:
        train(tiny_config(tmp_path, *OPTIONS, "trainer.max_steps=13"), tmp_path / "run")
    calls = [
        (call.args[1]["global_step"], Path(call.args[2]).name) for call in saved.call_args_list
    ]
    assert [step for step, file in calls if file == "last.ckpt"] == [4, 5, 8, 10, 12, 13]
    assert [step for step, file in calls if file == "best.ckpt"] == [5, 10, 13]
    assert steps(tmp_path / "run/checkpoints") == {
        "best.ckpt": 13,
        "last.ckpt": 13,
        "previous.ckpt": 12,
    }


def test_auto_resumes_from_the_last_good_checkpoint(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    run = tmp_path / "run"
    folder = run / "checkpoints"
    worsen(monkeypatch, 12)
    train(tiny_config(tmp_path, *OPTIONS), run)
    assert last_good(folder) == (folder / "last.ckpt", [])
    data = bytearray((folder / "last.ckpt").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "last.ckpt").write_bytes(data)
    assert train(tiny_config(tmp_path, *OPTIONS, "resume=auto"), run)["steps"] == 12
    said = capsys.readouterr().err
    assert f"{folder}/last.ckpt: is damaged, or is not a checkpoint" in said
    assert f"resume=auto: resuming from {folder}/previous.ckpt" in said
    assert steps(folder) == {
        "best.ckpt": 10,
        "last.ckpt": 12,
        "previous.ckpt": 10,
    }  # not the damaged one


FINISHED = (
    "holds a finished run: choose another hydra.run.dir=FOLDER, or replace it with resume=replace"
)
UNFINISHED = (
    "holds an unfinished run: continue it with resume=auto, or choose another hydra.run.dir=FOLDER"
)


@pytest.mark.parametrize(
    ("state", "words", "message"),
    [
        ("finished", "trainer.devices=2", FINISHED),
        ("unfinished", "seed=1", UNFINISHED),
        ("unfinished", "resume=replace", UNFINISHED),
        ("without checkpoints", "resume=auto", FINISHED),
        (
            "damaged",
            "resume=auto",
            "no checkpoint of its run can be read: choose another hydra.run.dir=FOLDER",
        ),
    ],
)
def test_a_run_is_not_replaced_unless_asked(
    run: Path, state: str, words: str, message: str
) -> None:
    if state == "unfinished":
        (run / "metrics.json").unlink()
    for path in (
        (run / "checkpoints").glob("*.ckpt") if state in ("without checkpoints", "damaged") else ()
    ):
        data = path.read_bytes()
        path.unlink()  # two may be links to one file
        if state == "damaged":
            path.write_bytes(data[:-1])
    before = contents_of(run)
    with pytest.raises(OptionError, match=f"^hydra.run.dir={run}: {message}$"):
        train(tiny_config(run.parent, *OPTIONS, words), run)
    assert contents_of(run) == before


def test_a_finished_run_is_replaced_by_a_word(run: Path, capsys: Output) -> None:
    (run / "context_curve.png").touch()
    options = (*OPTIONS, "trainer.max_steps=3", "trainer.val_every_n_steps=null", "resume=replace")
    train(tiny_config(run.parent, *options), run)
    assert steps(run / "checkpoints") == {"best.ckpt": 3, "last.ckpt": 3}
    assert f"{run} holds an earlier run, which this one replaces" in capsys.readouterr().err
    assert not (run / "context_curve.png").exists()
    assert [
        json.loads(line)["steps"] for line in (run / "validation.jsonl").read_text().splitlines()
    ] == [3]


@pytest.mark.parametrize("n_removed", [1, 2, 3, 4])
def test_auto_does_not_continue_what_a_kill_left_half_replaced(
    run: Path, monkeypatch: Patch, n_removed: int
) -> None:
    config = tiny_config(run.parent, *OPTIONS, "resume=replace")
    removed: list[Path] = []
    unlink = Path.unlink

    def killed(path: Path) -> None:
        removed.append(path)
        if len(removed) > n_removed:
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_directory(config, run, None, None)
    with pytest.raises(OptionError, match="holds a finished run"):
        refuse_to_replace(replace(config, resume="auto"), run)


def test_auto_begins_or_evaluates_a_finished_run_again(tmp_path: Path, capsys: Output) -> None:
    results = []
    nothing = "12 of 5 steps are done, the run is evaluated again"
    for n_steps, said in ((12, "no checkpoint in"), (12, "resuming from"), (5, nothing)):
        config = tiny_config(tmp_path, *OPTIONS, "resume=auto", f"trainer.max_steps={n_steps}")
        metrics = train(config, tmp_path / "run")
        assert metrics == json.loads((tmp_path / "run/metrics.json").read_text())
        assert (metrics["steps"], metrics["tokens"]) == (12, 12 * 32)
        assert f"resume=auto: {said}" in capsys.readouterr().err
        results.append({**metrics, **VARYING})
    assert results[0] == results[1] == results[2]


def test_a_run_in_a_folder_that_moved_knows_its_best(tmp_path: Path, monkeypatch: Patch) -> None:
    worsen(monkeypatch, 12, 13)
    train(tiny_config(tmp_path, *OPTIONS), tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    metrics = train(
        tiny_config(tmp_path, *OPTIONS, "resume=auto", "trainer.max_steps=13"), tmp_path / "b"
    )
    assert metrics["weights_step"] == 10
    assert steps(tmp_path / "b/checkpoints")["best.ckpt"] == 10


def test_a_kill_between_the_best_and_the_last_loses_nothing(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    worsen(monkeypatch, 10, 12)  # the best one is that of step 5
    whole = train(tiny_config(tmp_path, *OPTIONS), tmp_path / "whole")

    def killed(checkpoint: Any, trainer: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(
            checkpoints.LastCheckpoint,
            "on_validation_end",
            lambda self, trainer, _: killed(self, trainer),
        )
        with pytest.raises(RuntimeError, match="killed"):
            train(tiny_config(tmp_path, *OPTIONS), tmp_path / "run")
    assert steps(tmp_path / "run/checkpoints") == {"best.ckpt": 5, "last.ckpt": 4}
    again = train(tiny_config(tmp_path, *OPTIONS, "resume=auto"), tmp_path / "run")
    assert (again["weights"], again["weights_step"]) == ("best", 5)
    assert {**again, **VARYING} == {**whole, **VARYING}


@pytest.mark.parametrize("every", ["4", pytest.param("null", marks=pytest.mark.full)])
def test_a_validation_that_was_cut_short_is_made(
    tmp_path: Path, monkeypatch: Patch, every: str
) -> None:
    """Validated every 4 steps or at the end of an epoch (56), and saved every 4 or 56: never before the validation."""
    at, save = (12, 4) if every == "4" else (56, 56)
    options = (
        f"trainer.max_steps={at}",
        f"trainer.val_every_n_steps={every}",
        f"checkpoint.every_n_steps={save}",
    )
    config = tiny_config(tmp_path, *options, "evaluation.max_segments=2", "model.dropout=0.2")
    whole = train(config, tmp_path / "whole")

    def breaks(module: LanguageModelModule) -> None:
        if module.trainer.global_step == at:
            raise RuntimeError("something broke")

    with monkeypatch.context() as patched:
        patch_module(patched, "validation_step", after=breaks)
        with pytest.raises(RuntimeError, match="something broke"):
            train(config, tmp_path / "run")
    again = train(replace(config, resume="auto"), tmp_path / "run")
    assert {**again, **VARYING} == {**whole, **VARYING}
