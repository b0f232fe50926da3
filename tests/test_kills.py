"""Twenty kills at random moments: what is started again ends as if nothing had interrupted it.

Nothing is left running. Five each of a run, two ranks, a multirun of both, and a reproduction.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.forked import ForkedCommand, start_module
from tests.small_multirun import words, written
from tests.training.small_run import TEXT
from txl_lightning.evaluation.trained import read_file

KILLS = int(os.environ.get("TXL_KILLS", "5"))
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
RANKS = {"run": 1, "two ranks": 2}
# Numbers that differ between two runs of one command.
VARYING = ("seconds", "peak_memory_bytes", "prompt_seconds", "tokens_per_second", "checkpoint")
STEPS = (
    "trainer.max_steps=24",
    "trainer.val_every_n_steps=8",
    "checkpoint.every_n_steps=2",
    "model.dropout=0.2",
)


def start(folder: Path, kind: str) -> ForkedCommand:
    """Start a command, or start it again."""
    folder.mkdir(exist_ok=True)
    if kind == "reproduction":
        return start_reproduction(folder)
    command = words(folder, *STEPS)
    if kind == "multirun":
        command += ["trainer.devices=1,2", "hydra.launcher.max_parallel=2"]
    else:
        command = [word for word in command if word != "-m" and "sweep" not in word]
        command += [
            f"trainer.devices={RANKS[kind]}",
            f"hydra.run.dir={folder / 'run'}",
            "resume=auto",
        ]
    return start_module(folder, "txl_lightning.cli", *command)


def start_reproduction(folder: Path) -> ForkedCommand:
    """Start Table 7 at smoke size, or start it again."""
    text = folder.parent / "text.txt"
    text.write_text(TEXT * 20)
    arguments = [
        "--profile=smoke",
        "--only=table_7",
        "--logger=none",
        f"--directory={folder / 'report'}",
        *STEPS,
        "data=file",
        "data.level=byte",
        f"data.path={text}",
        f"data.cache_dir={folder.parent / 'cache'}",
    ]
    return start_module(folder, "experiments.reproduce", *arguments)


def results(folder: Path) -> dict[str, Any]:
    """Return everything that a user keeps: metrics, curves, weights, tables."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in ("metrics.json", "generation.json"):
            found[name] = without_varying(path.read_text())
        elif path.name == "validation.jsonl":
            found[name] = [without_varying(line) for line in path.read_text().splitlines()]
        elif path.name in ("last.ckpt", "best.ckpt"):
            found[name] = read_file(path)["state_dict"]
        elif path.name in ("multirun.json", "multirun.md"):
            found[name] = path.read_text()
    return found


def without_varying(text: str) -> dict[str, Any]:
    """Return a JSON dictionary without the numbers that differ between two runs."""
    return {name: value for name, value in json.loads(text).items() if name not in VARYING}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare results file by file; weights bit by bit."""
    assert found.keys() == expected.keys()
    for name, content in expected.items():
        if not name.endswith(".ckpt"):
            assert found[name] == content, name
            continue
        for weight, tensor in content.items():
            assert torch.equal(found[name][weight], tensor), f"{name}: {weight}"


def run_once(folder: Path, kind: str, signal_number: int | None, moment: float) -> tuple[int, bool]:
    """Run a command, and send it a signal if it still runs at a moment; return its status and whether it was killed."""
    command = start(folder, kind)
    processes: list[psutil.Process] = []
    killed = False
    if signal_number is not None:
        command.process.join(moment)
        killed = command.poll() is None
    if killed:
        processes = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(signal_number)
    done = command.finish()
    # A rank that starts at the moment of a kill may find the semaphores of multiprocessing gone, and say so.
    own_frames = re.search(r"File \"[^\"]*/(txl_lightning|experiments|hydra_plugins)/", done.stderr)
    assert not own_frames, done.stderr
    allowed = (0, -signal_number, 128 + signal_number, 130) if killed else (0,)
    assert done.returncode in allowed, done.stderr
    wait_for(processes)
    return done.returncode, killed


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [*RANKS, "multirun", "reproduction"])
def test_what_was_killed_at_random_moments_ends_as_if_nothing_had_happened(
    tmp_path: Path, kind: str
) -> None:
    began = time.monotonic()
    start(tmp_path / "whole", kind).succeed()
    seconds = time.monotonic() - began
    whole = results(tmp_path / "whole")
    assert whole
    chance = random.Random(kind)
    n_killed = 0
    n_rounds = 0
    while n_killed < KILLS:
        n_rounds += 1
        folder = tmp_path / f"cut{n_rounds}"
        finished_jobs: dict[str, int] = {}
        status = -1
        while status != 0:
            signal_number = chance.choice(SIGNALS) if n_killed < KILLS else None
            status, killed = run_once(
                folder, kind, signal_number, chance.uniform(0.05, 1.0) * seconds
            )
            n_killed += killed
            assert (
                finished_jobs.items() <= written(folder).items()
            )  # no job ran to its end a second time
            finished_jobs = written(folder)
        assert_same(results(folder), whole)


def wait_for(processes: list[psutil.Process], seconds: float = 20) -> None:
    """Wait until no process runs."""
    deadline = time.monotonic() + seconds
    for process in processes:
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, process
            time.sleep(0.05)
