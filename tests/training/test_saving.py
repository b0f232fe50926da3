"""Checkpoints that a run keeps, the one that it resumes from, and its messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.training.small_run import patch_module, tiny_config, train_tiny, trained, with_losses
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import read_file
from txl_lightning.training.checkpoints import DurableCheckpointIO, RunCheckpoint
from txl_lightning.training.run import train

VARYING = {"seconds": 0, "peak_memory_bytes": 0}  # by run
OPTIONS = ("checkpoint.every_n_steps=4", "evaluation.max_segments=2", "optimizer.schedule=constant")


def steps(directory: Path) -> dict[str, int]:
    """Return the step of each checkpoint."""
    return {path.name: read_file(path)["global_step"] for path in directory.glob("*.ckpt")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Copy a run of 12 steps, validated after 5, 10 and 12."""
    shutil.copytree(
        trained(*OPTIONS),
        tmp_path,
        dirs_exist_ok=True,
    )
    return tmp_path / "run"


def test_saved_every_n_steps_at_validation_and_at_the_end(tmp_path):
    name = "save_checkpoint"
    save = DurableCheckpointIO.save_checkpoint
    with patch.object(DurableCheckpointIO, name, autospec=True, side_effect=save) as saved:
        train_tiny(tmp_path, *OPTIONS, "trainer.max_steps=13")
    written = {
        "last.ckpt": [],
        "best.ckpt": [],
    }
    for call in saved.call_args_list:
        written[Path(call.args[2]).name].append(call.args[1]["global_step"])
    assert written == {"last.ckpt": [4, 5, 8, 10, 12, 13], "best.ckpt": [5, 10, 13]}


def test_auto_resumes_from_the_previous_checkpoint_if_the_last_is_damaged(
    tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    last = run / "checkpoints/last.ckpt"
    with_losses(monkeypatch, {12: 99.0})
    train(tiny_config(tmp_path, *OPTIONS), run)
    assert steps(last.parent) == {"best.ckpt": 10, "last.ckpt": 12, "previous.ckpt": 10}
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    assert train(tiny_config(tmp_path, *OPTIONS, "resume=auto"), run)["steps"] == 12
    said = capsys.readouterr().err
    assert f"{last}: is damaged, or is not a checkpoint" in said
    assert f"resume=auto: resuming from {last.parent}/previous.ckpt" in said
    assert steps(last.parent) == {"best.ckpt": 10, "last.ckpt": 12, "previous.ckpt": 10}


ANOTHER = "choose another hydra.run.dir=FOLDER"
FINISHED = f"holds a finished run: {ANOTHER}, or delete this one"
UNFINISHED = f"holds an unfinished run: continue it with resume=auto, or {ANOTHER}"
DAMAGED = f"no checkpoint of its run can be read: {ANOTHER}"


@pytest.mark.parametrize(
    ("state", "words", "message"),
    [
        ("finished", "trainer.devices=2", FINISHED),
        ("unfinished", "seed=1", UNFINISHED),
        ("without checkpoints", "resume=auto", FINISHED),
        ("damaged", "resume=auto", DAMAGED),
    ],
)
def test_a_run_is_never_replaced(run, state, words, message):
    if state == "unfinished":
        (run / "metrics.json").unlink()
    for path in (run / "checkpoints").glob("*.ckpt"):
        if state == "without checkpoints":
            path.unlink()
        if state == "damaged":
            path.write_bytes(path.read_bytes()[:-1])
    before = contents_of(run)
    with pytest.raises(
        OptionError,
        match=f"^hydra.run.dir={run}: {message}$",
    ):
        train(
            tiny_config(run.parent, *OPTIONS, words),
            run,
        )
    assert contents_of(run) == before


def contents_of(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_auto_begins_or_evaluates_a_finished_run_again(tmp_path, capsys):
    results = []
    nothing = "12 of 5 steps are done, the run is evaluated again"
    for n_steps, said in ((12, "no checkpoint in"), (12, "resuming from"), (5, nothing)):
        config = tiny_config(
            tmp_path,
            *OPTIONS,
            "resume=auto",
            f"trainer.max_steps={n_steps}",
        )
        metrics = train(config, tmp_path / "run")
        assert metrics == json.loads((tmp_path / "run/metrics.json").read_text())
        assert f"resume=auto: {said}" in capsys.readouterr().err
        results.append({**metrics, **VARYING})
    assert results[0] == results[1] == results[2]
    assert results[0]["tokens"] == 12 * 32


def test_a_run_in_a_folder_that_moved_knows_its_best(tmp_path, monkeypatch):
    with_losses(monkeypatch, {12: 99.0, 13: 99.0})
    train_tiny(tmp_path, *OPTIONS, name="a")
    (tmp_path / "a").rename(tmp_path / "b")
    more = tiny_config(tmp_path, *OPTIONS, "resume=auto", "trainer.max_steps=13")
    assert train(more, tmp_path / "b")["weights_step"] == 10


def test_a_kill_between_the_best_and_the_last_loses_nothing(tmp_path, monkeypatch):
    with_losses(monkeypatch, {10: 99.0, 12: 99.0})
    whole = train_tiny(tmp_path, *OPTIONS, name="whole")

    def killed(self, trainer):
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(RunCheckpoint, "save", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train_tiny(tmp_path, *OPTIONS, "checkpoint.every_n_steps=99")
    assert steps(tmp_path / "run/checkpoints") == {"best.ckpt": 5}
    again = train_tiny(tmp_path, *OPTIONS, "resume=auto")
    assert again["weights_step"] == 5
    assert {**again, **VARYING} == {**whole, **VARYING}


def test_a_validation_that_was_cut_short_is_made(tmp_path, monkeypatch):
    """A checkpoint is due at the same step: it is not saved before the validation.

    The memory of two groups of streams goes on in the middle of documents.
    """
    options = (
        "trainer.val_every_n_steps=4",
        "checkpoint.every_n_steps=12",
        "trainer.stream_groups=2",
        "model.dropout=0.2",
        "memory.mem_len=24",
        "memory.reset=document",
        "data.document_start='^line'",
        "data.random_start=true",
    )
    whole = train_tiny(tmp_path, *options, name="whole")

    def breaks(module):
        if module.trainer.global_step == 12:
            raise RuntimeError("something broke")

    with monkeypatch.context() as patched:
        patch_module(patched, "validation_step", after=breaks)
        with pytest.raises(RuntimeError, match="something broke"):
            train_tiny(tmp_path, *options)
    again = train_tiny(tmp_path, *options, "resume=auto")
    assert {**again, **VARYING} == {**whole, **VARYING}
