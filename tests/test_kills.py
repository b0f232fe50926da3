"""Twenty kills at random moments: what is started again ends as if nothing had interrupted it.

Nothing is left running. Five each of a run, two ranks, a multirun of both, and a reproduction.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.forked import start_module
from tests.test_resumed_multirun import words, written
from tests.training.small_run import TEXT
from txl_lightning.runs.storage import read_file

ROOT = Path(__file__).parents[1]
KILLS = int(os.environ.get("TXL_KILLS", "5"))
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
VARYING = ("seconds", "peak_memory_bytes", "prompt_seconds", "tokens_per_second", "checkpoint")
STEPS = ("trainer.max_steps=24", "trainer.val_every_n_steps=8", "checkpoint.every_n_steps=2", "model.dropout=0.2")


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


class Command:
    """A command in a process of its own: `words` after the name of a module."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(exist_ok=True)
        self.errors = folder / "errors.txt"
        if kind == "reproduction":
            text = folder.parent / "text.txt"
            text.write_text(TEXT * 20)
            given = ["--profile=smoke", "--only=table_7", "--logger=none", f"--directory={folder / 'report'}", *STEPS]
            given += ["data=file", "data.level=byte", f"data.path={text}", f"data.cache_dir={folder.parent / 'cache'}"]
            command = [sys.executable, "-m", "experiments.reproduce", *given]
            with self.errors.open("w") as errors:
                self.process: Any = subprocess.Popen(command, cwd=ROOT, stderr=errors, stdout=subprocess.DEVNULL)
        else:
            command = words(folder, *STEPS)
            if kind == "multirun":
                command += ["trainer.devices=1,2", "hydra.launcher.max_parallel=2"]
            else:
                devices = 2 if kind == "two ranks" else 1
                command = [word for word in command if word != "-m" and "sweep" not in word]
                command += [f"trainer.devices={devices}", f"hydra.run.dir={folder / 'run'}", "resume=auto"]
            self.process = start_module(folder, "txl_lightning.cli", *command)

    def wait(self, seconds: float) -> bool:
        """Return whether the command still runs after this time."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.process.poll() is None

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what the command said on standard error."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.wait(300), self.errors.read_text()
        done = self.process.finish()
        return done.returncode, done.stderr


def results(folder: Path) -> dict[str, Any]:
    """Return everything that a user keeps: metrics, curves, weights, tables."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in ("metrics.json", "generation.json"):
            content = json.loads(path.read_text())
            found[name] = {key: value for key, value in content.items() if key not in VARYING}
        elif path.name == "validation.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: value for key, value in row.items() if key not in VARYING} for row in rows]
        elif path.name in ("last.ckpt", "best.ckpt"):
            found[name] = read_file(path)["state_dict"]
        elif path.name in ("multirun.json", "multirun.md"):
            found[name] = path.read_text()
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names of the files that differ, or that only one of the two has; weights are compared bit by bit."""

    def same(name: str) -> bool:
        if not name.endswith(".ckpt"):
            return bool(found[name] == expected[name])
        return all(torch.equal(found[name][key], tensor) for key, tensor in expected[name].items())

    return [name for name in found.keys() | expected.keys() if not (name in found and name in expected and same(name))]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["run", "two ranks", "multirun", "reproduction"])
def test_what_was_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    status, said = Command(tmp_path / "whole", kind).end()
    assert status == 0, said
    seconds, whole = time.monotonic() - began, results(tmp_path / "whole")
    assert whole
    chance, n_killed, n_rounds = random.Random(kind), 0, 0
    while n_killed < KILLS:
        n_rounds += 1
        folder, done_before = tmp_path / f"cut{n_rounds}", dict[str, int]()
        status = -1
        while status != 0:
            command = Command(folder, kind)
            processes: list[psutil.Process] = []
            number, moment = chance.choice(SIGNALS), chance.uniform(0.05, 1.0) * seconds
            if killed := n_killed < KILLS and command.wait(moment):
                processes = psutil.Process(command.process.pid).children(recursive=True)
                command.process.send_signal(number)
                n_killed += 1
            status, said = command.end()
            # A rank that starts at the moment of a kill may find the semaphores of multiprocessing gone, and say so.
            assert not re.search(r"File \"[^\"]*/(txl_lightning|experiments|hydra_plugins)/", said), said
            assert status in ((0, -number, 128 + number, 130) if killed else (0,)), (status, number, said)
            assert done_before.items() <= written(folder).items()  # no job ran to its end a second time
            done_before = written(folder)
            wait_until(lambda: not alive(processes))  # noqa: B023
        assert differences(results(folder), whole) == []


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
