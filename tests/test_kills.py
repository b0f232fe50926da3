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
VARYING = (
    "seconds",
    "peak_memory_bytes",
    "prompt_seconds",
    "tokens_per_second",
    "checkpoint",
)
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
        command.remove("-m")
        command.remove(f"hydra.sweep.dir={folder}/sweep")
        where = f"hydra.run.dir={folder}/run"
        command += [f"trainer.devices={RANKS[kind]}", where, "resume=auto"]
    return start_module(folder, "txl_lightning.cli", *command)


def start_reproduction(folder: Path) -> ForkedCommand:
    """Start Table 7 at smoke size, or start it again."""
    text = folder.parent / "text.txt"
    text.write_text(TEXT * 20)
    return start_module(
        folder,
        "experiments.reproduce",
        "--profile=smoke",
        "--only=table_7",
        "--logger=none",
        f"--directory={folder / 'report'}",
        *STEPS,
        "data=file",
        "data.level=byte",
        f"data.path={text}",
        f"data.cache_dir={folder.parent / 'cache'}",
    )


def results(folder: Path) -> dict[str, Any]:
    """Return everything that a user keeps: metrics, curves, tables by file, and weights by file and name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        file = path.relative_to(folder).as_posix()
        if path.name in ("metrics.json", "generation.json"):
            found[file] = without_varying(path.read_text())
        elif path.name == "validation.jsonl":
            found[file] = [without_varying(line) for line in path.read_text().splitlines()]
        elif path.name in ("multirun.json", "multirun.md"):
            found[file] = path.read_text()
        elif path.name in ("last.ckpt", "best.ckpt"):
            for name, weight in read_file(path)["state_dict"].items():
                found[f"{file}: {name}"] = weight
    return found


def without_varying(text: str) -> dict[str, Any]:
    """Return a JSON dictionary without the numbers that differ between two runs."""
    return {name: value for name, value in json.loads(text).items() if name not in VARYING}


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare results; weights bit by bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


def run_and_kill(folder: Path, kind: str, number: int, moment: float) -> tuple[int, bool]:
    """Run a command, and send it a signal if it still runs at a moment; return its status and whether it was killed."""
    command = start(folder, kind)
    command.process.join(moment)
    processes: list[psutil.Process] = []
    allowed = [0]
    is_killed = command.poll() is None
    if is_killed:
        processes = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(number)
        allowed += [-number, 128 + number, 130]
    done = command.finish()
    # A rank that starts at the moment of a kill may find the semaphores of multiprocessing gone, and say so.
    own_frame = r"File \"[^\"]*/(txl_lightning|experiments|hydra_plugins)/"
    assert not re.search(own_frame, done.stderr), done.stderr
    assert done.returncode in allowed, done.stderr
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    return done.returncode, is_killed


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
            # After the last kill the command runs to its end.
            moment = chance.uniform(0.05, 1.0) * seconds if n_killed < KILLS else 600
            status, is_killed = run_and_kill(folder, kind, chance.choice(SIGNALS), moment)
            n_killed += is_killed
            assert finished_jobs.items() <= written(folder).items()  # no finished job ran again
            finished_jobs = written(folder)
        check_same(results(folder), whole)
