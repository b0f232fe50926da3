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

BEST = "FOLDER/run/checkpoints/best.ckpt"  # FOLDER is the folder of a trained run
COMMANDS = {
    "train": "data=file data.path=FOLDER/text.txt data.level=byte data.cache_dir=cache",
    "evaluate": f"checkpoint={BEST}",
    "recl": f"checkpoints=[{BEST}] first_context=8 step=8 max_context=16 n_positions=8",
    "attention": f"checkpoint={BEST} logger=none",
    "generate": f"checkpoint={BEST} prompt=line n_tokens=1",
    "convert": f"source={BEST} source_format=txl target=out target_format=original",
}


def limited(directory: Path, size: int, command: str, *words: str) -> CompletedProcess[str]:
    """Run a command that can write files of at most `size` bytes; git would leave its lock behind."""
    given = [word.replace("FOLDER", str(trained())) for word in words]
    variables = {"FILE_SIZE": str(size), "GIT_OPTIONAL_LOCKS": "0"}
    return start_module(directory, "tests.limited", command, *given, **variables).finish()


def check_last_line(done: CompletedProcess[str]) -> str:
    """Check that a command ended with an expected error, and return its line."""
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


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
    here = f"hydra.run.dir={run}"

    line = check_last_line(limited(tmp_path, 100_000, *words, here))  # smaller than a checkpoint

    reason = f"[Errno 27] File too large: '{run}/checkpoints/best.ckpt'"
    repeat = f"with space again repeat the command with {here} resume=auto"
    assert line == f"txl train: could not write the checkpoint of step 3: {reason}; {repeat}"
    assert not (run / "metrics.json").exists()

    start_module(tmp_path, "txl_lightning.cli", *words, here, "resume=auto").succeed()
    start_module(tmp_path, "txl_lightning.cli", *words, "hydra.run.dir=whole").succeed()
    assert metrics(run) | VARYING == metrics(tmp_path / "whole") | VARYING


@pytest.mark.slow
def test_a_command_that_cannot_even_write_its_message_fails(tmp_path: Path) -> None:
    done = limited(tmp_path, 0, "evaluate", COMMANDS["evaluate"])
    assert done.returncode in (1, 2)


@pytest.mark.parametrize(
    ("command", "size", "more"),
    [
        ("train", 1000, ""),  # a file of Hydra's
        ("recl", 1000, ""),
        ("train", 500, "hydra.output_subdir=null"),
        ("evaluate", 500, "hydra.output_subdir=null"),
        ("recl", 500, "hydra.output_subdir=null"),
        ("attention", 500, "hydra.output_subdir=null"),
        ("generate", 200, "hydra.output_subdir=null"),
    ],
)
def test_a_command_that_cannot_write_ends_with_one_line(
    tmp_path: Path, command: str, size: int, more: str
) -> None:
    words = [*COMMANDS[command].split(), "hydra.run.dir=run", *more.split()]
    line = check_last_line(limited(tmp_path, size, command, *words))
    assert re.match(rf"txl {command}: .*File too large", line)
    assert re.search(r"\brun\b|data\.cache_dir=", line)


@pytest.mark.parametrize(
    ("command", "more", "name"),
    [
        ("convert", "", "out"),
        ("evaluate", "losses=true splits=[train]", "losses_train.npz"),
        ("attention", "", "attention.npz"),
    ],
)
def test_a_large_result_is_whole_or_absent(
    tmp_path: Path, command: str, more: str, name: str
) -> None:
    folder = "." if command == "convert" else "run"
    where = (f"hydra.run.dir={folder}", "hydra.output_subdir=null")
    words = [*COMMANDS[command].split(), *more.split(), *where]
    assert name in check_last_line(limited(tmp_path, 2400, command, *words))
    for path in (tmp_path / folder).iterdir():
        assert not path.name.startswith((".part-", name))
