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
from txl_lightning.runs.storage import read_file

KILLS = int(os.environ.get("TXL_KILLS", "5"))
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
RANKS = {"run": 1, "two ranks": 2}
VARYING = ("seconds", "peak_memory_bytes", "prompt_seconds", "tokens_per_second", "checkpoint")
STEPS = ("trainer.max_steps=24", "trainer.val_every_n_steps=8", "checkpoint.every_n_steps=2", "model.dropout=0.2")


def start(folder: Path, kind: str) -> ForkedCommand:
    """Start a command, or start it again."""
    folder.mkdir(exist_ok=True)
    if kind == "reproduction":
        (folder.parent / "text.txt").write_text(TEXT * 20)
        given = ["--profile=smoke", "--only=table_7", "--logger=none", f"--directory={folder / 'report'}", *STEPS]
        given += ["data=file", "data.level=byte", f"data.path={folder.parent / 'text.txt'}"]
        return start_module(folder, "experiments.reproduce", *given, f"data.cache_dir={folder.parent / 'cache'}")
    command = words(folder, *STEPS)
    if kind == "multirun":
        command += ["trainer.devices=1,2", "hydra.launcher.max_parallel=2"]
    else:
        command = [word for word in command if word != "-m" and "sweep" not in word]
        command += [f"trainer.devices={RANKS[kind]}", f"hydra.run.dir={folder / 'run'}", "resume=auto"]
    return start_module(folder, "txl_lightning.cli", *command)


def still_runs(command: ForkedCommand, seconds: float) -> bool:
    """Return whether the command still runs after this time."""
    command.process.join(seconds)
    return command.poll() is None


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


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [*RANKS, "multirun", "reproduction"])
def test_what_was_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    start(tmp_path / "whole", kind).succeed()
    seconds, whole = time.monotonic() - began, results(tmp_path / "whole")
    assert whole
    chance, n_killed, n_rounds = random.Random(kind), 0, 0
    while n_killed < KILLS:
        n_rounds += 1
        folder, done_before = tmp_path / f"cut{n_rounds}", dict[str, int]()
        status = -1
        while status != 0:
            command, processes = start(folder, kind), list[psutil.Process]()
            number, moment = chance.choice(SIGNALS), chance.uniform(0.05, 1.0) * seconds
            if killed := n_killed < KILLS and still_runs(command, moment):
                processes = psutil.Process(command.pid).children(recursive=True)
                command.send_signal(number)
                n_killed += 1
            done = command.finish()
            status, said = done.returncode, done.stderr
            # A rank that starts at the moment of a kill may find the semaphores of multiprocessing gone, and say so.
            assert not re.search(r"File \"[^\"]*/(txl_lightning|experiments|hydra_plugins)/", said), said
            assert status in ((0, -number, 128 + number, 130) if killed else (0,)), (status, number, said)
            assert done_before.items() <= written(folder).items()  # no job ran to its end a second time
            done_before = written(folder)
            wait_for(processes)
        assert differences(results(folder), whole) == []


def wait_for(processes: list[psutil.Process], seconds: float = 20) -> None:
    """Wait until no process runs."""
    deadline = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)
