"""A full disk ends every command with one line and no result; with space again the same command completes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.forked import start_module
from tests.test_resumed_multirun import words
from tests.training.small_run import trained
from tests.training.test_saving import VARYING


def limited(directory: Path, size: int, *arguments: str) -> CompletedProcess[str]:
    """Run a command that can write files of at most `size` bytes; git would leave its lock behind."""
    return start_module(directory, "tests.limited", *arguments, FILE_SIZE=str(size), GIT_OPTIONAL_LOCKS="0").finish()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_training_without_checkpoints_fails_and_completes_later(tmp_path: Path, devices: int) -> None:
    given = words(tmp_path, f"trainer.devices={devices}", f"hydra.run.dir={tmp_path / 'run'}")
    given = [word for word in given if word != "-m" and "sweep" not in word]
    done = limited(tmp_path, 100_000, *given)  # smaller than a checkpoint
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    best = tmp_path / "run/checkpoints/best.ckpt"
    end = f"to continue, repeat the command with hydra.run.dir={tmp_path / 'run'} resume=auto"
    line = f"could not write the checkpoint of step 3: [Errno 27] File too large: '{best}'; {end}"
    assert done.stderr.splitlines()[-1] == f"txl train: {line}"
    assert not (tmp_path / "run/metrics.json").exists()
    for words_ in ([*given, "resume=auto"], [*given[:-1], f"hydra.run.dir={tmp_path / 'whole'}"]):
        start_module(tmp_path, "txl_lightning.cli", *words_).succeed()
    found, expected = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("run", "whole"))
    assert found | VARYING == expected | VARYING


BEST = "FOLDER/run/checkpoints/best.ckpt"  # FOLDER is that of a trained run
COMMANDS = {
    "train": ("data=file", "data.path=FOLDER/text.txt", "data.level=byte"),
    "evaluate": (f"checkpoint={BEST}",),
    "recl": (f"checkpoints=[{BEST}]", "first_context=8", "step=8", "max_context=16", "n_positions=8"),
    "attention": (f"checkpoint={BEST}",),
    "generate": (f"checkpoint={BEST}", "prompt=line", "n_tokens=1"),
}
WITHOUT_ROOM = {"a message": (0,), "Hydra's files": (1000,), "the command's files": (500, "hydra.output_subdir=null")}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", WITHOUT_ROOM)
def test_every_command_that_cannot_write_ends_with_one_line(tmp_path: Path, command: str, what: str) -> None:
    size, *more = WITHOUT_ROOM[what]
    given = [word.replace("FOLDER", str(trained())) for word in COMMANDS[command]]
    done = limited(tmp_path, size, command, *given, f"hydra.run.dir={tmp_path / 'run'}", *more)
    if size == 0:
        assert done.returncode in (1, 2)
        return
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    line = done.stderr.splitlines()[-1]
    assert re.match(rf"txl {command}: .*File too large", line)
    assert any(place in line for place in (str(tmp_path / "run"), "data.cache_dir="))


ARRAYS = {  # and the file that does not fit: what the command leaves has no part of it
    "out": ("convert", f"source={BEST}", "source_format=txl", "target=out", "target_format=original"),
    "losses_train.npz": ("evaluate", f"checkpoint={BEST}", "losses=true", "splits=[train]"),
    "tokens_test.parquet": ("evaluate", f"checkpoint={BEST}", "per=token", "table=parquet", "splits=[test]"),
    "attention.npz": ("attention", f"checkpoint={BEST}", "logger=none"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_large_result_is_whole_or_absent(tmp_path: Path, name: str) -> None:
    given = [word.replace("FOLDER", str(trained())) for word in ARRAYS[name]]
    where = "." if name == "out" else "run"
    done = limited(tmp_path, 2400, *given, f"hydra.run.dir={where}", "hydra.output_subdir=null")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert name in done.stderr.splitlines()[-1]
    assert not any(path.name.startswith((".part-", name)) for path in (tmp_path / where).iterdir())
