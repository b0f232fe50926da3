"""A full disk ends every command with one line and no result; with space again the same command completes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.forked import start_module
from tests.training.small_run import TEXT, TINY, trained
from tests.training.test_saving import VARYING


def limited(directory: Path, size: int, *arguments: str) -> CompletedProcess[str]:
    """Run a command that can write files of at most `size` bytes; git would leave its lock behind."""
    variables = {"FILE_SIZE": str(size), "GIT_OPTIONAL_LOCKS": "0"}
    return start_module(directory, "tests.limited", *arguments, **variables).finish()


def metrics(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_training_without_checkpoints_fails_and_completes_later(
    tmp_path: Path, devices: int
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    words = [
        "train",
        *TINY,
        "data.path=text.txt",
        "data.cache_dir=cache",
        "evaluation.max_segments=2",
        "trainer.max_steps=6",
        "trainer.val_every_n_steps=3",
        f"trainer.devices={devices}",
    ]
    run = tmp_path / "run"

    done = limited(tmp_path, 100_000, *words, f"hydra.run.dir={run}")  # smaller than a checkpoint

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    reason = f"[Errno 27] File too large: '{run}/checkpoints/best.ckpt'"
    repeat = f"with space again repeat the command with hydra.run.dir={run} resume=auto"
    assert lines[-1] == f"txl train: could not write the checkpoint of step 3: {reason}; {repeat}"
    assert not (run / "metrics.json").exists()

    for more in ([f"hydra.run.dir={run}", "resume=auto"], [f"hydra.run.dir={tmp_path / 'whole'}"]):
        start_module(tmp_path, "txl_lightning.cli", *words, *more).succeed()
    assert metrics(run) | VARYING == metrics(tmp_path / "whole") | VARYING


BEST = "FOLDER/run/checkpoints/best.ckpt"  # FOLDER is the folder of a trained run
COMMANDS = {
    "train": ("data=file", "data.path=FOLDER/text.txt", "data.level=byte"),
    "evaluate": (f"checkpoint={BEST}",),
    "recl": (
        f"checkpoints=[{BEST}]",
        "first_context=8",
        "step=8",
        "max_context=16",
        "n_positions=8",
    ),
    "attention": (f"checkpoint={BEST}",),
    "generate": (f"checkpoint={BEST}", "prompt=line", "n_tokens=1"),
}
HYDRA_FILES = (1000,)
FILES_OF_THE_COMMAND = (500, "hydra.output_subdir=null")


def in_trained_folder(words: tuple[str, ...]) -> list[str]:
    return [word.replace("FOLDER", str(trained())) for word in words]


@pytest.mark.slow
def test_a_command_that_cannot_even_write_its_message_fails(tmp_path: Path) -> None:
    done = limited(tmp_path, 0, "evaluate", *in_trained_folder(COMMANDS["evaluate"]))
    assert done.returncode in (1, 2)


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("train", HYDRA_FILES),
        ("train", FILES_OF_THE_COMMAND),
        ("evaluate", FILES_OF_THE_COMMAND),
        ("recl", HYDRA_FILES),
        ("recl", FILES_OF_THE_COMMAND),
        ("attention", FILES_OF_THE_COMMAND),
        ("generate", (200, "hydra.output_subdir=null")),
    ],
)
def test_a_command_that_cannot_write_ends_with_one_line(
    tmp_path: Path, command: str, limit: tuple
) -> None:
    size, *more = limit
    words = [command, *in_trained_folder(COMMANDS[command]), "hydra.run.dir=run", *more]
    done = limited(tmp_path, size, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert re.match(rf"txl {command}: .*File too large", line)
    assert re.search(r"\brun\b|data\.cache_dir=", line)


# The file that does not fit, the folder where it is written, the command.
LARGE_RESULTS = [
    (
        "out",
        ".",
        ("convert", f"source={BEST}", "source_format=txl", "target=out", "target_format=original"),
    ),
    (
        "losses_train.npz",
        "run",
        ("evaluate", f"checkpoint={BEST}", "losses=true", "splits=[train]"),
    ),
    ("attention.npz", "run", ("attention", f"checkpoint={BEST}", "logger=none")),
]


@pytest.mark.parametrize(("name", "folder", "words"), LARGE_RESULTS)
def test_a_large_result_is_whole_or_absent(
    tmp_path: Path, name: str, folder: str, words: tuple[str, ...]
) -> None:
    where = (f"hydra.run.dir={folder}", "hydra.output_subdir=null")
    done = limited(tmp_path, 2400, *in_trained_folder(words), *where)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert name in done.stderr.splitlines()[-1]
    for path in (tmp_path / folder).iterdir():
        assert not path.name.startswith((".part-", name))
