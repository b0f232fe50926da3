"""Multiruns whose processes are killed at random moments end with the results of an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.forked import ForkedCommand, start_module
from tests.test_multirun import jobs_of
from tests.test_resumed_multirun import RANGE, words

# Starting a job takes seconds, so that a test has time for few kills; the ten of the measurement: TXL_KILLS=10.
KILLS = int(os.environ.get("TXL_KILLS", "2"))
PARALLEL = ("hydra.launcher.max_parallel=2", "checkpoint.every_n_steps=2", "trainer.max_steps=40")
SWEEPS = {
    "grid": (*PARALLEL, "seed=1,2", "memory.mem_len=8,0"),
    "optuna": (*PARALLEL, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=1", RANGE),
}


def start(directory: Path, *arguments: str) -> ForkedCommand:
    return start_module(directory, "txl_lightning.cli", *words(directory, *arguments))


def victims(process: ForkedCommand) -> list[int]:
    """Process ids of the multirun and of the jobs that run."""
    try:
        return [process.pid, *(job.pid for job in jobs_of(process))]
    except (psutil.NoSuchProcess, ProcessLookupError):
        return []


def interrupted(process: ForkedCommand, moment: float, chance: random.Random) -> str:
    """Kill the multirun, with Optuna in it, or one of its jobs; return which of them."""
    end = time.monotonic() + moment
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    found = victims(process)
    if process.poll() is not None or not found:
        return "too late"
    victim = chance.choice(found[1:]) if len(found) > 1 and chance.random() < 0.5 else found[0]
    try:
        psutil.Process(victim).kill()
    except psutil.NoSuchProcess:
        return "too late"
    process.finish()
    return "parent" if victim == found[0] else "job"


def written(directory: Path) -> dict[str, int]:
    """When the result of each job was written, which is the end of its run."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (directory / "sweep").glob("*/metrics.json")}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SWEEPS)
def test_a_multirun_killed_at_random_moments_ends_with_the_same_results(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    done = start(tmp_path / "whole", *SWEEPS[kind]).finish(1200)
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - began
    chance, killed, n_rounds = random.Random(1), Counter[str](), 0
    while killed["parent"] + killed["job"] < KILLS:
        n_rounds += 1
        directory, results = tmp_path / f"cut{n_rounds}", dict[str, int]()
        while True:
            process = start(directory, *SWEEPS[kind])
            if killed["parent"] + killed["job"] < KILLS:
                killed[interrupted(process, chance.uniform(0.1, 1.0) * seconds, chance)] += 1
            done = process.finish(1200)
            assert results.items() <= written(directory).items()  # no job ran to its end a second time
            results = written(directory)
            if done.returncode == 0:
                break
        for name in ("multirun.json", "multirun.md"):
            assert (directory / "sweep" / name).read_text() == (tmp_path / "whole/sweep" / name).read_text()
    print(f"{kind}: {dict(killed)} in {n_rounds} multiruns, {seconds:.0f} s uninterrupted")
    assert len(json.loads((tmp_path / "whole/sweep/multirun.json").read_text())["jobs"]) == 4
