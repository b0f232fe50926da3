"""Seconds of whole commands, each in a fresh process: start-up, RECL, data preparation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.page import ROOT
from benchmarks.training_costs import checkpoint_cost, step_profiles, validation_cost

TXL = (sys.executable, "-m", "txl_lightning.cli")
MODEL = ("profile=laptop", "data=python-stdlib", "logger=none", "trainer.progress_bar=false")
FIRST_STEP = (
    *("trainer.max_steps=1", "trainer.val_every_n_steps=null", "evaluation.max_segments=1"),
    "trainer.progress_file=true",
)
GRID = ("first_context=16", "step=16", "max_context=256", "n_positions=1000", "num_threads=1", "logger=none")
LOSSES = {"first": 16, "last": 256, "positions": 10_000, "threads": 2, "tenth": 10}  # `tenth`: share of the direct way
POLL_SECONDS = 0.002
CORPORA = (("wikipedia-2015", "char"), ("wikipedia-2015", "byte"), ("python-stdlib", "byte"))
# Runs in a process of its own, whose peak memory is then that of the preparation.
PREPARE = """
import re, sys
from pathlib import Path
from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import load_corpus
load_corpus(DataConfig(name=sys.argv[1], level=sys.argv[2], cache_dir=sys.argv[3]))
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""
# Seconds of the losses of one model by context, with the same positions in both precisions; the direct way reads every
# tenth block of them.
SCORE = """
import json, sys, time
from dataclasses import replace
import torch
from txl_lightning.data.corpus import load_corpus
from txl_lightning.evaluation.scoring.loss_grid import loss_grid
from txl_lightning.evaluation.scoring.position_blocks import position_blocks
from txl_lightning.evaluation.scoring.windows import window_reader
from txl_lightning.runs.bfloat16 import autocast
from txl_lightning.runs.trained import load_trained
sizes = json.loads(sys.argv[2])
torch.set_num_threads(sizes["threads"])
trained = load_trained(sys.argv[1])
tokens = load_corpus(trained.config.data).splits["test"]
contexts = list(range(sizes["first"], sizes["last"] + 1, sizes["first"]))
positions, blocks = position_blocks(len(tokens), sizes["positions"], contexts)
reader = window_reader(trained.model)
some = blocks % sizes["tenth"] == 0
ways = {
    "one pass float32": (reader, "32-true", positions),
    "one pass bf16": (reader, "bf16-mixed", positions),
    "direct float32": (replace(reader, one_pass=False), "32-true", positions[some]),
}
seconds = {}
for name, (way, precision, here) in ways.items():
    with autocast(precision, torch.device("cpu")):
        loss_grid(way, tokens, here[:8], contexts)
        start = time.perf_counter()
        loss_grid(way, tokens, here, contexts)
    seconds[name] = (time.perf_counter() - start) * len(positions) / len(here)
print(json.dumps(seconds))
"""


def run(*words: str, directory: Path) -> tuple[float, str]:
    """Run a command in a directory; return its seconds and its standard output.

    Raises:
        SystemExit: the command failed; shows its error.
    """
    start = time.perf_counter()
    ended = subprocess.run(words, cwd=directory, env=environment(), capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if ended.returncode:
        raise SystemExit(f"bench: {' '.join(words)} failed:\n{ended.stderr}")
    return seconds, ended.stdout


def environment() -> dict[str, str]:
    """Return the variables of a command: this code, wherever it is installed from."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def first_step(scratch: Path, name: str, *overrides: str) -> float:
    """Return the seconds from the start of `txl train` to the end of its first step.

    Args:
        scratch: folder of the cached corpus; the run directory is made in it.
        name: name of the run directory.
        overrides: further arguments of `txl train`.

    Raises:
        SystemExit: the command failed.
    """
    directory = scratch / name
    options = (*MODEL, f"data.cache_dir={scratch / 'cache'}", *FIRST_STEP, *overrides, f"hydra.run.dir={directory}")
    start = time.perf_counter()
    process = subprocess.Popen([*TXL, "train", *options], cwd=scratch, env=environment(), stdout=subprocess.DEVNULL)
    taken = None
    while process.poll() is None and taken is None:
        if steps_done(directory / "progress.json"):
            taken = time.perf_counter() - start
        time.sleep(POLL_SECONDS)
    if process.wait() or taken is None:
        raise SystemExit("bench: txl train failed; its error is above")
    return taken


def steps_done(path: Path) -> int:
    """Return the steps that a progress file (replaced atomically) tells of."""
    return int(json.loads(path.read_text())["steps"]) if path.exists() else 0


def startup(scratch: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of `txl --help` and of `txl train` to its first step; the corpus is cached before."""
    first_step(scratch, "warm-up")
    return {
        "help": [run(*TXL, "--help", directory=scratch)[0] for _ in range(rounds)],
        "first_step": [first_step(scratch, f"start-{i}") for i in range(rounds)],
    }


def recl(scratch: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of `txl recl` for one model, with an empty store."""
    first_step(scratch, "model")
    checkpoint = scratch / "model" / "checkpoints" / "last.ckpt"
    seconds = []
    for i in range(rounds):
        words = (f"checkpoints=[{checkpoint}]", *GRID, f"store={scratch / f'store-{i}'}", f"hydra.run.dir=recl-{i}")
        seconds.append(run(*TXL, "recl", *words, directory=scratch)[0])
    return {"seconds": seconds}


def recl_losses(scratch: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of the losses by context of one model: in one pass, and directly, from a tenth of them."""
    first_step(scratch, "scored")
    checkpoint = str(scratch / "scored" / "checkpoints" / "last.ckpt")
    words = (sys.executable, "-c", SCORE, checkpoint, json.dumps(LOSSES))
    measured = [json.loads(run(*words, directory=scratch)[1]) for _ in range(rounds)]
    return {**LOSSES, "seconds": {name: [of_round[name] for of_round in measured] for name in measured[0]}}


def preparation(scratch: Path, rounds: int) -> dict[str, Any]:
    """Return seconds and peak memory of preparing each corpus that is there, then of reading it from the cache."""
    corpora: dict[str, dict[str, list[float]]] = {}
    for name, level in CORPORA:
        if name != "python-stdlib" and not (Path(os.environ.get("TXL_DATA", "/nowhere")) / name).is_dir():
            continue
        measured: dict[str, list[float]] = {"first": [], "cached": [], "first_peak": [], "cached_peak": []}
        for i in range(rounds):
            for when in ("first", "cached"):
                words = (sys.executable, "-c", PREPARE, name, level, str(scratch / f"{name}-{level}-{i}"))
                seconds, peak = run(*words, directory=scratch)
                measured[when].append(seconds)
                measured[f"{when}_peak"].append(float(peak))
        corpora[f"{name}, {level}"] = measured
    return {"corpora": corpora}


COMMANDS: dict[str, tuple[Callable[[Path, int], dict[str, Any]], int, float]] = {  # with rounds and expected minutes
    "startup": (startup, 3, 0.8),
    "recl": (recl, 2, 0.8),
    "recl_losses": (recl_losses, 1, 2.0),
    "preparation": (preparation, 2, 0.8),
    "checkpoints": (checkpoint_cost, 2, 0.8),
    "validation": (validation_cost, 3, 2.0),
    "profile": (step_profiles, 5, 1.5),
}
