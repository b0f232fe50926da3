"""Checkpoints that a run keeps, the one that it resumes from, and its messages."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import Mock, patch

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import TrainerFn

from tests.fixtures import Output, Patch
from tests.training.small_run import csv_rows, patch_module, tiny_config, trained
from txl_lightning.errors import OptionError, UserError
from txl_lightning.runs.storage import read_file
from txl_lightning.training import checkpointing
from txl_lightning.training.checkpointing import (
    Checkpoints,
    DurableCheckpoints,
    last_good,
    prepare_directory,
    refuse_to_replace,
)
from txl_lightning.training.curves import CurveFile, keep_rows
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

VARYING = {"seconds": 0, "peak_memory_bytes": 0}  # by run
OPTIONS = ("checkpoint.every_n_steps=4", "evaluation.max_segments=2", "optimizer.schedule=constant")


def steps(directory: Path) -> dict[str, int]:
    """After how many steps each checkpoint was written."""
    return {path.name: read_file(path)["global_step"] for path in sorted(directory.glob("*.ckpt"))}


def diverge(monkeypatch: Patch, *at: int) -> None:
    """Let the loss of the validations after these steps be infinite."""

    def spoil(module: LanguageModelModule) -> None:
        if module.trainer.state.fn == TrainerFn.FITTING and module.trainer.global_step in at:
            module.metrics["val/nll"] = math.inf

    patch_module(monkeypatch, "on_validation_epoch_end", after=spoil)


def contents_of(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Copy a run of 12 steps, validated after 5, 10 and 12."""
    shutil.copytree(trained(*OPTIONS), tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def test_saved_every_n_steps_at_validation_and_at_the_end(tmp_path: Path) -> None:
    name, save = "save_checkpoint", DurableCheckpoints.save_checkpoint
    with patch.object(DurableCheckpoints, name, autospec=True, side_effect=save) as saved:
        train(tiny_config(tmp_path, *OPTIONS, "trainer.max_steps=13"), tmp_path / "run")
    assert [call.args[1]["global_step"] for call in saved.call_args_list] == [4, 5, 8, 10, 12, 13]
    assert steps(tmp_path / "run/checkpoints") == {"best.ckpt": 13, "last.ckpt": 13, "previous.ckpt": 12}


def test_auto_resumes_from_the_last_good_checkpoint(tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    run, folder = tmp_path / "run", tmp_path / "run/checkpoints"
    diverge(monkeypatch, 12)
    train(tiny_config(tmp_path, *OPTIONS), run)
    assert last_good(folder) == (folder / "last.ckpt", [])
    data = bytearray((folder / "last.ckpt").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "last.ckpt").write_bytes(data)
    assert train(tiny_config(tmp_path, *OPTIONS, "resume=auto"), run)["steps"] == 12
    said = capsys.readouterr().err
    assert f"{folder}/last.ckpt: is damaged: its checksum is not the one stored in the file" in said
    assert f"resume=auto: resuming from {folder}/previous.ckpt" in said
    assert steps(folder) == {"best.ckpt": 10, "last.ckpt": 12, "previous.ckpt": 10}  # not the damaged one


FINISHED = "holds a finished run: choose another hydra.run.dir=FOLDER, or replace it with resume=replace"
UNFINISHED = "holds an unfinished run: continue it with resume=auto, or choose another hydra.run.dir=FOLDER"


@pytest.mark.parametrize(
    ("state", "words", "message"),
    [
        *(("finished", word, FINISHED) for word in ("trainer.devices=1", "trainer.devices=2", "resume=LAST")),
        *(("unfinished", word, UNFINISHED) for word in ("seed=1", "resume=replace", "checkpoint.enabled=false")),
        ("without checkpoints", "resume=auto", FINISHED),
        ("damaged", "resume=auto", "no checkpoint of its run can be read: choose another hydra.run.dir=FOLDER"),
    ],
)
def test_a_run_is_not_replaced_unless_asked(run: Path, state: str, words: str, message: str) -> None:
    if state == "unfinished":
        (run / "metrics.json").unlink()
    for path in (run / "checkpoints").glob("*.ckpt") if state in ("without checkpoints", "damaged") else ():
        data = path.read_bytes()
        path.unlink()  # two are links to one file
        if state == "damaged":
            path.write_bytes(data[:-1])
    before = contents_of(run)
    words = words.replace("LAST", f"{trained(*OPTIONS)}/run/checkpoints/last.ckpt")
    with pytest.raises(OptionError, match=f"^hydra.run.dir={run}: {message}$"):
        train(tiny_config(run.parent, *OPTIONS, words), run)
    assert contents_of(run) == before


def test_a_finished_run_is_replaced_by_a_word(run: Path, capsys: Output, monkeypatch: Patch) -> None:
    diverge(monkeypatch, 3)
    (run / "context_curve.png").touch()
    options = (*OPTIONS, "trainer.max_steps=3", "trainer.val_every_n_steps=null", "resume=replace")
    train(tiny_config(run.parent, *options), run)
    assert steps(run / "checkpoints") == {"last.ckpt": 3}
    assert f"{run} holds an earlier run, which this one replaces" in capsys.readouterr().err
    assert not (run / "context_curve.png").exists()
    assert [json.loads(line)["steps"] for line in (run / "validation.jsonl").read_text().splitlines()] == [3]


@pytest.mark.parametrize("n_removed", range(1, 5))
def test_auto_does_not_continue_what_a_kill_left_half_replaced(run: Path, monkeypatch: Patch, n_removed: int) -> None:
    config, removed, unlink = tiny_config(run.parent, *OPTIONS, "resume=replace"), list[Path](), Path.unlink

    def killed(path: Path) -> None:
        removed.append(path)
        if len(removed) > n_removed:
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_directory(config, run, None, None)
    with pytest.raises(OptionError, match="holds a finished run"):
        refuse_to_replace(replace(config, resume="auto"), run)


def test_auto_begins_or_evaluates_a_finished_run_again(tmp_path: Path, capsys: Output) -> None:
    found, nothing = [], "12 steps are done, trainer.max_steps=5: nothing to train"
    for steps, said in ((12, "no checkpoint in"), (12, "resuming from"), (5, nothing)):
        config = tiny_config(tmp_path, *OPTIONS, "resume=auto", f"trainer.max_steps={steps}")
        metrics = train(config, tmp_path / "run")
        assert metrics == json.loads((tmp_path / "run/metrics.json").read_text())
        assert (metrics["steps"], metrics["tokens"]) == (12, 12 * 32)
        assert f"resume=auto: {said}" in capsys.readouterr().err
        found.append({**metrics, **VARYING})
    assert found[0] == found[1] == found[2]


def test_the_best_one_comes_along_into_another_directory(tmp_path: Path, monkeypatch: Patch) -> None:
    diverge(monkeypatch, 12, 13, 15, 20, 21)
    train(tiny_config(tmp_path, *OPTIONS), tmp_path / "a")
    resume = f"resume={tmp_path / 'a/checkpoints/last.ckpt'}"
    metrics = train(tiny_config(tmp_path, *OPTIONS, resume, "trainer.max_steps=21"), tmp_path / "b")
    assert metrics["weights"] == "best"
    assert steps(tmp_path / "b/checkpoints")["best.ckpt"] == 10
    (tmp_path / "a/checkpoints/best.ckpt").unlink()
    train(tiny_config(tmp_path, *OPTIONS, resume, "trainer.max_steps=13"), tmp_path / "c")
    assert steps(tmp_path / "c/checkpoints") == {"last.ckpt": 13}


def test_a_kill_before_the_best_one_is_copied_loses_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    diverge(monkeypatch, 10, 12)  # the best one is that of step 5
    whole = train(tiny_config(tmp_path, *OPTIONS), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_copy_best", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(UserError, match="KeyboardInterrupt"):
            train(tiny_config(tmp_path, *OPTIONS), tmp_path / "run")
    assert not (tmp_path / "run/checkpoints/best.ckpt").exists()
    again = train(tiny_config(tmp_path, *OPTIONS, "resume=auto"), tmp_path / "run")
    assert (again["weights"], again["weights_step"]) == ("best", 5)
    assert {**again, **VARYING} == {**whole, **VARYING}


@pytest.mark.parametrize("every", ["4", pytest.param("null", marks=pytest.mark.full)])
def test_a_validation_that_was_cut_short_is_made(tmp_path: Path, monkeypatch: Patch, every: str) -> None:
    """Validated every 4 steps or at the end of an epoch (56), and saved every 4 or 56: never before the validation."""
    at, save = (12, 4) if every == "4" else (56, 56)
    options = (f"trainer.max_steps={at}", f"trainer.val_every_n_steps={every}", f"checkpoint.every_n_steps={save}")
    config = tiny_config(tmp_path, *options, "evaluation.max_segments=2", "model.dropout=0.2")
    whole = train(config, tmp_path / "whole")

    def breaks(module: LanguageModelModule) -> None:
        if module.trainer.global_step == at:
            raise RuntimeError("something broke")

    with monkeypatch.context() as patch:
        patch_module(patch, "validation_step", after=breaks)
        with pytest.raises(RuntimeError, match="something broke"):
            train(config, tmp_path / "run")
    again = train(replace(config, resume="auto"), tmp_path / "run")
    assert {**again, **VARYING} == {**whole, **VARYING}


def test_a_memory_has_its_own_precision_and_steps_no_autocast(tmp_path: Path, monkeypatch: Patch) -> None:
    seen = set()
    patch_module(monkeypatch, "on_before_optimizer_step", lambda module: seen.add(torch.is_autocast_enabled("cpu")))
    train(tiny_config(tmp_path, *OPTIONS, "trainer.precision=bf16-mixed"), tmp_path / "run")
    memory = read_file(tmp_path / "run/checkpoints/last.ckpt")["training_memory"]["memory"]["states"]
    assert memory.untyped_storage().nbytes() == memory.numel() * memory.element_size()
    assert seen == {False}


def test_a_full_disk_is_reported_and_training_continues(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    """Checkpoints of steps 8 and 10 and everything else that is written between steps fail."""
    saved, full_disk = checkpointing.write_checkpoint, Mock(side_effect=OSError(28, "No space left on device"))

    def save(contents: dict, path: Path, previous: Path | None = None) -> None:
        fails = contents["global_step"] in (8, 10) or path.name.startswith("step")
        full_disk() if fails else saved(contents, path, previous)

    monkeypatch.setattr(checkpointing, "write_checkpoint", save)
    monkeypatch.setattr("txl_lightning.training.curves.CSVLogger.log_metrics", full_disk)
    diverge(monkeypatch, 12)
    options = ("checkpoint.keep_every_n_steps=4", "logger=csv")
    metrics = train(tiny_config(tmp_path, *OPTIONS, *options), tmp_path / "run")
    assert (metrics["steps"], metrics["weights_step"]) == (12, 5)
    said = capsys.readouterr().err
    before = "the last one is of step 5; "
    for what, more in (("step4.ckpt", ""), ("the curves", ""), ("the checkpoint of step 8", before)):
        assert f"could not write {what}: [Errno 28] No space left on device; {more}training continues" in said
    assert steps(tmp_path / "run/checkpoints") == {"best.ckpt": 5, "last.ckpt": 12, "previous.ckpt": 5}
    assert read_file(tmp_path / "run/checkpoints/last.ckpt")["callbacks"]["Checkpoints"]["best"]["step"] == 5


@pytest.mark.parametrize("name", ["training.checkpointing.write_checkpoint", "training.checkpointing.copy_checkpoint"])
@pytest.mark.parametrize("n_failures", [1, 2])
def test_a_last_write_is_repeated(tmp_path: Path, monkeypatch: Patch, name: str, n_failures: int) -> None:
    write, failures = resolve_name(f"txl_lightning.{name}"), iter(range(n_failures))

    def fails(source: dict | Path, *target: Path, **options: Path | None) -> None:
        contents = source if isinstance(source, dict) else read_file(source)
        if contents["global_step"] == 12 and next(failures, None) is not None:
            raise PermissionError
        write(source, *target, **options)

    monkeypatch.setattr(f"txl_lightning.{name}", fails)
    with nullcontext() if n_failures == 1 else pytest.raises(UserError, match="of the last step, 12, could not be wri"):
        train(tiny_config(tmp_path, *OPTIONS), tmp_path / "run")
        assert steps(tmp_path / "run/checkpoints")["best.ckpt"] == 12
    assert (tmp_path / "run/metrics.json").exists() == (n_failures == 1)


FOREIGN = {
    "validation.jsonl": ("[1]\n", "{}\n", '{"steps": "x"}\n', "\x00\udcff\n", "[" * 100_000 + "\n", '{"steps": 1'),
    "metrics.csv": ("\n", "1,2\n", "a,b,c\n", ",,,,,,,,,,,,,,,\n", '"\n', "\x00\udcff\n", "x" * 200_000 + "\n", "12,3"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_lines_of_something_else_leave_the_curves_of_a_resumed_run(tmp_path: Path, capsys: Output, name: str) -> None:
    options = (*OPTIONS, "logger=csv", "trainer.log_every_n_steps=4")
    shutil.copytree(trained(*options), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / name
    before = path.read_bytes()
    n_lines = before.count(b"\n")
    path.write_text(path.read_text() + "".join(FOREIGN[name]), "utf-8", "surrogateescape")
    train(tiny_config(tmp_path, *options, "resume=auto", "trainer.max_steps=14"), tmp_path / "run")
    more = len(FOREIGN[name]) - 1
    said = f"{path}, line {n_lines + 1} and {more} more: cut short, or not of this run; removed\n"
    assert said in capsys.readouterr().err
    assert path.read_bytes().startswith(before)
    assert path.read_bytes().count(b"\n") == n_lines + (1 if name == "validation.jsonl" else 3)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_or_a_kill_at_the_start_loses_no_row_of_metrics_csv(tmp_path: Path) -> None:
    def started(step: int) -> CSVLogger:
        logger = CSVLogger(tmp_path, name=None, version="")
        keep_rows(logger, step)
        return logger

    def log(logger: CSVLogger, step: int, **values: float) -> None:
        logger.log_metrics(values, step)
        logger.save()

    first, path = started(0), tmp_path / "metrics.csv"
    for step in (1, 2, 3):
        log(first, step, loss=step / 8)
    assert first.experiment is first._experiment
    before = path.read_text()
    with no_file_beyond(len(before) - 1):
        again = started(3)
    assert path.read_text() == before
    with no_file_beyond(len(before) + 2):
        for step, values in ((4, {"loss": 0.5}), (5, {"val": 0.25})):
            with pytest.raises(OSError, match=r"File too large|No space left"):
                log(again, step, **values)
            assert path.read_text() == before
    log(again, 6, loss=0.75)
    rows = [(row["step"], row["loss"], row["val"]) for row in csv_rows(path)]
    assert rows[3:] == [("4", "0.5", ""), ("5", "", "0.25"), ("6", "0.75", "")]
    log(started(5), 6, loss=1.0)
    assert path.read_text().splitlines()[-2:] == [",5,0.25", "1.0,6,"]


def test_lines_that_found_no_room_are_written_with_the_next(tmp_path: Path, capsys: Output) -> None:
    file = CurveFile(tmp_path / "validation.jsonl")
    for step, size in ((1, 1000), (2, 20), (3, 20), (4, 1000)):
        with no_file_beyond(size):
            file.append({"steps": step})
    assert file.path.read_text() == "".join(f'{{"steps": {step}}}\n' for step in (1, 2, 3, 4))
    assert capsys.readouterr().err.count("could not write validation.jsonl: [Errno 2") == 2
