"""A full disk ends every command with one line and no result; with space again the same command completes it."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.forked import start_module
from tests.test_resumed_multirun import words
from tests.training.small_run import trained

SHORT = ("trainer.max_steps=6", "trainer.val_every_n_steps=3", "evaluation.max_segments=2")
SMALLER_THAN_A_CHECKPOINT = 100_000
VARYING = {"seconds": 0, "peak_memory_bytes": 0}


def limited(directory: Path, size: int, *arguments: str, module: str = "txl_lightning.cli") -> CompletedProcess[str]:
    """Run a command that can write files of at most `size` bytes."""
    variables = {"FILE_SIZE": str(size), "MODULE": module, "GIT_OPTIONAL_LOCKS": "0"}  # git would leave its lock behind
    return start_module(directory, "tests.limited", *arguments, **variables).finish()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_training_without_checkpoints_fails_and_completes_later(tmp_path: Path, devices: int) -> None:
    _, _, *given = words(tmp_path, f"trainer.devices={devices}", f"hydra.run.dir={tmp_path / 'run'}")
    given = ["train", *(word for word in given if "sweep" not in word)]
    done = limited(tmp_path, SMALLER_THAN_A_CHECKPOINT, *given)
    assert done.returncode == 2
    said = done.stderr.splitlines()
    folder = tmp_path / "run/checkpoints"
    line = (
        f"could not write the checkpoint of step 6: [Errno 27] File too large: '{folder}/last.ckpt'; there is none yet"
    )
    assert said.count(line) == 2  # tried again
    end = f"to continue, repeat the command with hydra.run.dir={tmp_path / 'run'} resume=auto"
    assert said[-1] == f"txl train: {folder}: the checkpoints of the last step, 6, could not be written; {end}"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run/metrics.json").exists()
    done = start_module(tmp_path, "txl_lightning.cli", *given, "resume=auto").finish()
    assert done.returncode == 0, done.stderr
    whole = start_module(tmp_path, "txl_lightning.cli", *given[:-1], f"hydra.run.dir={tmp_path / 'whole'}").finish()
    assert whole.returncode == 0, whole.stderr
    found, expected = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("run", "whole"))
    assert found | VARYING == expected | VARYING


def test_a_multirun_counts_jobs_without_checkpoints_as_failed(tmp_path: Path) -> None:
    given = words(tmp_path, "seed=1,2")
    done = limited(tmp_path, SMALLER_THAN_A_CHECKPOINT, *given)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "txl train: 2 of 2 jobs failed")
    jobs = json.loads((tmp_path / "sweep/multirun.json").read_text())["jobs"]
    assert [job["state"] for job in jobs] == ["failed", "failed"]
    assert all("the checkpoints of the last step, 6, could not be written" in job["error"] for job in jobs)
    assert start_module(tmp_path, "txl_lightning.cli", *given).finish().returncode == 0
    jobs = json.loads((tmp_path / "sweep/multirun.json").read_text())["jobs"]
    assert [job["state"] for job in jobs] == ["finished", "finished"]


COMMANDS = {
    "train": ("data=file", "data.path=PATH", "data.level=byte"),
    "evaluate": ("checkpoint=BEST",),
    "recl": ("checkpoints=[BEST]", "first_context=8", "step=8", "max_context=16", "n_positions=8"),
    "attention": ("checkpoint=BEST",),
    "generate": ("checkpoint=BEST", "prompt=line", "n_tokens=1"),
}
WITHOUT_ROOM = {
    "the message": (0,),
    "files of Hydra": (1000,),
    "files of the command": (500, "hydra.output_subdir=null"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", WITHOUT_ROOM)
def test_every_command_that_cannot_write_ends_with_one_line(tmp_path: Path, command: str, what: str) -> None:
    whole, (size, *more) = trained(), WITHOUT_ROOM[what]
    text = {"BEST": str(whole / "run/checkpoints/best.ckpt"), "PATH": str(whole / "text.txt")}
    given = [word.replace("BEST", text["BEST"]).replace("PATH", text["PATH"]) for word in COMMANDS[command]]
    done = limited(tmp_path, size, command, *given, f"hydra.run.dir={tmp_path / 'run'}", *more)
    if size == 0:
        assert done.returncode in (1, 2)
        return
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"txl {command}: ")
    assert "File too large" in line
    assert any(place in line for place in (str(tmp_path / "run"), "data.cache_dir="))
    assert "Traceback" not in done.stderr


ARRAYS = {  # and the file that does not fit: what the command leaves has no part of it
    "out": ("convert", "source=BEST", "source_format=txl", "target=out", "target_format=original"),
    "losses_train.npz": ("evaluate", "checkpoint=BEST", "losses=true", "splits=[train]"),
    "tokens_test.parquet": ("evaluate", "checkpoint=BEST", "per=token", "table=parquet", "splits=[test]"),
    "attention.npz": ("attention", "checkpoint=BEST", "logger=none"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_large_result_is_whole_or_absent(tmp_path: Path, name: str) -> None:
    command, *given = (word.replace("BEST", f"{trained()}/run/checkpoints/best.ckpt") for word in ARRAYS[name])
    where = "run" if command != "convert" else "."
    done = limited(tmp_path, 2400, command, *given, f"hydra.run.dir={where}", "hydra.output_subdir=null")
    assert done.returncode == 2, done.stderr
    assert name in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not any(path.name.startswith((".part-", name)) for path in (tmp_path / where).iterdir())


@pytest.mark.slow
def test_a_reproduction_ends_with_a_line_for_each_job(tmp_path: Path) -> None:
    given = ["--profile", "smoke", "--only", "table_9", "--directory", str(tmp_path / "report"), "--logger", "none"]
    done = limited(tmp_path, 1000, *given, module="experiments.reproduce")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
