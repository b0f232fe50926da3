"""Offline W&B runs of a training that was interrupted: every logged step is there once, under ids that differ."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.training.recorded_run import complete
from tests.training.small_run import tiny_config
from tests.wandb_files import history, media, records, run_files, summary, table
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.runs.trained import Checkpoint
from txl_lightning.training import loggers
from txl_lightning.training.loggers import CurveFile, earlier_rows, make_logger, supersede, upload_line

OPTIONS = (
    "logger=wandb",
    "trainer.max_steps=24",
    "trainer.log_every_n_steps=2",
    "trainer.val_every_n_steps=9",
    "checkpoint.every_n_steps=6",
    "evaluation.max_segments=3",
    "resume=auto",
    "model.dropout=0.2",
    *("context_curve.every_n_steps=6", "context_curve.max_context=8"),
)
KILL, TERM = signal.SIGKILL, signal.SIGTERM
EXPECTED = {"train/nll": range(2, 25, 2), "val/nll": (9, 18, 24), "context/bpc/2": range(6, 25, 6), "test/nll": (24,)}


@pytest.mark.slow
@pytest.mark.parametrize("events", [[(5, KILL), (17, KILL)], [(8, TERM), (17, KILL)]], ids=["killed", "stopped"])
def test_a_run_cut_twice_has_every_logged_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[tuple[int, int]]
) -> None:
    """A kill after step 4 leaves no checkpoint, one after step 16 leaves that of step 12."""
    for at, number in events:
        broken = complete(tmp_path, *OPTIONS, at=at, signal=number, rank=0)
        assert broken.returncode != 0 or "stopped by" in broken.stdout
    done = complete(tmp_path, *OPTIONS)
    assert done.returncode == 0, done.stderr
    files = list((tmp_path / "run").rglob("*.wandb"))
    ids = [record["run"]["run_id"] for file in files for record in records(file) if record["type"] == "run"]
    assert len(ids) == len(set(ids)) == len(files)
    for metric, steps in EXPECTED.items():
        logged = [row for file in files for row in history(file, metric)]
        assert Counter(row["trainer/global_step"] for row in logged) == Counter(steps), metric
        assert [row["tokens"] for row in logged] == [32 * step for step in steps], metric
    assert sum(len(media(file, "table", "context/curve_table")) for file in files) == 4
    assert [row[0] for row in table(files[-1], "context/table")["data"]] == ["6", "12", "18", "24"]
    shown = summary(files[-1])["summary"]
    assert shown["val/nll"] == {"min": min(row["val/nll"] for file in files for row in history(file, "val/nll"))}
    assert (
        upload_line(tmp_path / "run") == f"offline run of Weights & Biases, to upload it: wandb sync {files[0].parent}"
    )
    data = files[0].read_bytes()
    monkeypatch.setattr(loggers, "SECONDS_TO_WRITE", 0.0)
    for cut in (len(data) - 40, len(data) // 2, 100):  # as by a full disk
        files[0].write_bytes(data[:cut])
        assert upload_line(tmp_path / "run") == (
            f"offline run of Weights & Biases: {files[0]} was cut off, as by a full disk; "
            "a command with resume=auto writes it again, from wandb_history.jsonl"
        )
    superseded = {file.name for file in (tmp_path / "run").rglob("*.superseded")}
    assert len(superseded) == len(events)


def file_with(directory: Path, *rows: dict) -> CurveFile:
    file = CurveFile(directory / "wandb_history.jsonl")
    for row in rows:
        file.append(row)
    return file


def test_the_test_loss_of_a_finished_run_is_kept_only_if_the_run_goes_on(tmp_path: Path) -> None:
    rows = [{"steps": 0, "run": "a"}, {"steps": 12, "metrics": {"train/nll": 1.0}}]
    tested = {"steps": 12, "metrics": {"test/nll": 2.0}}
    file = file_with(tmp_path, *rows, tested)
    assert earlier_rows(file, 12, max_steps=24) == [*rows, tested]
    assert earlier_rows(file, 12, max_steps=12) == rows
    assert earlier_rows(file, 5, max_steps=12) == rows[:1]
    assert earlier_rows(file, -1, max_steps=12) == []  # another run in this directory


def test_only_the_runs_of_this_training_are_superseded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / f"wandb/offline-run-20260101_000000-{name}"
        folder.mkdir(parents=True)
        (folder / f"run-{name}.wandb").write_text(name)
    file = file_with(tmp_path, {"steps": 0, "run": "b"})
    supersede(tmp_path, file.keep(lambda row: True))
    assert [path.stem for path in run_files(tmp_path)] == ["run-a"]
    assert (folder / "run-b.wandb.superseded").read_text() == "b"
    assert upload_line(tmp_path) is None


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("earlier", ["online", "offline"])
def test_only_an_online_run_is_continued_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, earlier: str
) -> None:
    """An offline id that was synced later would be replaced, not continued."""
    monkeypatch.setattr(loggers, "start_wandb", lambda *args: args[-1])
    contents = {"txl_lightning": {"wandb_id": "abc"}, "global_step": 3}
    config = tiny_config(tmp_path, f"logger.mode={earlier}")
    resumed = Checkpoint(tmp_path, "resume", contents, config, Vocabulary("byte"), {})
    expected = "abc" if mode == earlier == "online" else None
    assert make_logger(tiny_config(tmp_path, "logger=wandb", f"logger.mode={mode}"), tmp_path, resumed, 1) == expected


def test_half_a_line_of_a_killed_run_is_dropped(tmp_path: Path) -> None:
    file = file_with(tmp_path, {"steps": 1})
    with file.path.open("a") as stream:
        stream.write('{"steps": 2, "x": {"y": 1}')
    assert file.keep(lambda row: True) == [{"steps": 1}]
    assert json.loads(file.path.read_text()) == {"steps": 1}
