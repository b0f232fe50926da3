"""Multiruns whose processes are killed at random moments end with the results of an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.forked import ForkedCommand, start_module
from tests.test_multirun import jobs_of
from tests.test_resumed_multirun import words, written

# Starting a job takes seconds, so that a test has time for few kills; the ten of the measurement: TXL_KILLS=10.
KILLS = int(os.environ.get("TXL_KILLS", "2"))
PARALLEL = ("hydra.launcher.max_parallel=2", "checkpoint.every_n_steps=2", "trainer.max_steps=40")
SWEEPS = {
    "grid": (*PARALLEL, "seed=1,2", "memory.mem_len=8,0"),
    "ddp": (*PARALLEL, "trainer.devices=2", "seed=1,2", "memory.mem_len=8,0"),
}


def start(directory: Path, *arguments: str) -> ForkedCommand:
    return start_module(directory, "txl_lightning.cli", *words(directory, *arguments))


def interrupted(process: ForkedCommand, moment: float, chance: random.Random) -> bool:
    """Kill the multirun or one of its jobs; return whether one still ran."""
    end = time.monotonic() + moment
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    try:
        jobs = jobs_of(process)
        chance.choice(jobs if jobs and chance.random() < 0.5 else [psutil.Process(process.pid)]).kill()
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False
    process.finish()
    return True


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SWEEPS)
def test_a_multirun_killed_at_random_moments_ends_with_the_same_results(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    done = start(tmp_path / "whole", *SWEEPS[kind]).finish(1200)
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - began
    chance, n_killed, n_rounds = random.Random(1), 0, 0
    while n_killed < KILLS:
        n_rounds += 1
        directory, results = tmp_path / f"cut{n_rounds}", dict[str, int]()
        while True:
            process = start(directory, *SWEEPS[kind])
            if n_killed < KILLS:
                n_killed += interrupted(process, chance.uniform(0.1, 1.0) * seconds, chance)
            done = process.finish(1200)
            assert results.items() <= written(directory).items()  # no job ran to its end a second time
            results = written(directory)
            if done.returncode == 0:
                break
        for name in ("multirun.json", "multirun.md"):
            assert (directory / "sweep" / name).read_text() == (tmp_path / "whole/sweep" / name).read_text()
    assert len(json.loads((tmp_path / "whole/sweep/multirun.json").read_text())["jobs"]) == 4
