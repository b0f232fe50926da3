"""Seconds of whole commands, and costs of training steps: kinds of operation, checkpoints, validation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import BF16, COMPARISONS, FLOAT32
from benchmarks.worker import ROOT, Workload, make_workload
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.data.corpus import load_corpus
from txl_lightning.evaluation.scoring.windows import loss_grid, position_blocks, window_reader
from txl_lightning.model.positions import attention_mask
from txl_lightning.runs.bfloat16 import autocast
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # this code, wherever it is installed from
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
COMMON = ("logger=none", "trainer.progress_bar=false", "evaluation.max_segments=1")
CHECKPOINTS = (
    *("model=txl_laptop", "data.batch_size=16", "data.segment_len=64", "optimizer.lr=1e-3"),
    *("trainer.val_every_n_steps=null", "trainer.val_max_segments=1", "trainer.num_threads=2"),
)
EVERY, STEPS = 50, 100
WAYS = ("without", "with")
VALIDATED_EVERY, VALIDATED_STEPS = 25, 250  # ten times as often as profile=laptop, whose cost is within the noise
WARMUP = {"small": 10, "large": 6, "base": 3}  # steps
PASSES = 4  # of the profiler, whose events take the place of freed tensors: some passes wait for new pages of memory
# Names of torch's operations without `aten::` and a last underscore; what is not named is "other".
KINDS = {
    "products": ("mm", "bmm", "addmm", "baddbmm", "mkldnn_linear"),
    "copies, casts, zeros": ("copy", "fill", "zero", "clone", "_to_copy"),
    "concatenations": ("cat", "stack"),
    "softmax": ("_softmax", "softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    "element-wise, norms, sums": (
        *("add", "sub", "mul", "div", "sum", "neg", "exp", "where", "relu", "clamp_min", "threshold_backward"),
        *("native_layer_norm", "native_layer_norm_backward", "addcmul", "masked_fill", "gather", "index_select"),
        *("embedding", "embedding_dense_backward"),
    ),
    "random numbers": ("bernoulli", "native_dropout", "native_dropout_backward", "rand", "random", "uniform"),
    "clipping, Adam": ("_fused_adam", "_foreach_mul", "_foreach_norm", "linalg_vector_norm", "_foreach_add"),
}
OTHER = "calls and other"
KEPT = "positions and mask"


def run(*words: str, directory: Path) -> tuple[float, str]:
    """Run a command of this code in a directory; return its seconds and its standard output.

    Raises:
        SystemExit: the command failed; shows its error.
    """
    start = time.perf_counter()
    ended = subprocess.run(words, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if ended.returncode:
        raise SystemExit(f"bench: {' '.join(words)} failed:\n{ended.stderr}")
    return seconds, ended.stdout


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
    process = subprocess.Popen([*TXL, "train", *options], cwd=scratch, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    taken, progress = None, directory / "progress.json"  # replaced atomically
    while process.poll() is None and taken is None:
        if progress.exists() and json.loads(progress.read_text())["steps"]:
            taken = time.perf_counter() - start
        time.sleep(POLL_SECONDS)
    if process.wait() or taken is None:
        raise SystemExit("bench: txl train failed; its error is above")
    return taken


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
    torch.set_num_threads(LOSSES["threads"])
    trained = load_trained(str(scratch / "scored" / "checkpoints" / "last.ckpt"))
    tokens = load_corpus(trained.config.data).splits["test"]
    contexts = list(range(LOSSES["first"], LOSSES["last"] + 1, LOSSES["first"]))
    positions, blocks = position_blocks(len(tokens), LOSSES["positions"], contexts)
    reader, some = window_reader(trained.model), positions[blocks % LOSSES["tenth"] == 0]
    ways = {
        "one pass float32": (reader, "32-true", positions),
        "one pass bf16": (reader, "bf16-mixed", positions),
        "direct float32": (replace(reader, one_pass=False), "32-true", some),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (way, precision, here) in ways.items():
            with autocast(precision, torch.device("cpu")):
                loss_grid(way, tokens, here[:8], contexts)
                start = time.perf_counter()
                loss_grid(way, tokens, here, contexts)
                taken = time.perf_counter() - start
            seconds[name].append(taken * len(positions) / len(here))
    return {**LOSSES, "seconds": seconds}


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


def checkpoint_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = EVERY, steps: int = STEPS
) -> dict[str, Any]:
    """Time training steps with a checkpoint every `every` steps and without, and measure the `bytes` of one."""
    ways = {name: (f"checkpoint.enabled={name == 'with'}", f"checkpoint.every_n_steps={every}") for name in WAYS}
    seconds = in_turns(scratch, rounds, ways, *CHECKPOINTS, f"trainer.max_steps={steps}", *overrides)
    size = (scratch / "with-0" / "checkpoints" / "last.ckpt").stat().st_size
    return {**seconds, "every": every, "steps": steps, "bytes": size}


def validation_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = VALIDATED_EVERY, steps: int = VALIDATED_STEPS
) -> dict[str, Any]:
    """Time training steps of the laptop profile with a validation every `every` steps and with the last one alone."""
    ways = {name: (f"trainer.val_every_n_steps={every if name == 'with' else 'null'}",) for name in WAYS}
    options = ("profile=laptop", "checkpoint.enabled=false", f"trainer.max_steps={steps}")
    return {**in_turns(scratch, rounds, ways, *options, *overrides), "every": every, "steps": steps}


def in_turns(scratch: Path, rounds: int, ways: Mapping[str, tuple[str, ...]], *options: str) -> dict[str, list[float]]:
    """Return the seconds of `metrics.json` of each round and way: first step to last, without start and evaluation."""
    register_schemas()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for i in range(rounds):
            for name in ways if i % 2 == 0 else reversed(ways):
                config = typed(compose("config", overrides=[*COMMON, *options, *ways[name]]))
                seconds[name].append(train(config, scratch / f"{name}-{i}")["seconds"])
    return seconds


def step_profiles(scratch: Path, rounds: int, warmup: Mapping[str, int] = WARMUP) -> dict[str, Any]:
    """Profile training steps of our model, `rounds` steps of each case and precision.

    Returns:
        `shares`: for each "case, precision" the share of the step's time by kind of operation in the fastest of several
        passes, and under `positions and mask` the share that computing both anew in every step takes, measured without
        the profiler.
    """
    found = {}
    for (name, steps), precision in product(warmup.items(), (FLOAT32, BF16)):
        workload = make_workload("training", "ours", replace(COMPARISONS["training"][name].sizes, precision=precision))
        workload.run(steps)
        step_seconds = workload.run(rounds) / rounds
        spent = min((time_by_kind(workload, rounds) for _ in range(PASSES)), key=lambda kinds: sum(kinds.values()))
        shares = {kind: taken / sum(spent.values()) for kind, taken in spent.items()}
        found[f"{name}, {precision}"] = {**shares, KEPT: positions_seconds(workload) / step_seconds}
    return {"shares": found}


def time_by_kind(workload: Workload, steps: int) -> dict[str, float]:
    """Profile steps and return the time by kind of operation."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        workload.run(steps)
    spent = dict.fromkeys((*KINDS, OTHER), 0.0)
    for event in profiled.events() or ():
        spent[kind_of(event.name)] += event.self_cpu_time_total
    return spent


def kind_of(name: str) -> str:
    """Return the kind of an operation of torch."""
    plain = name.removeprefix("aten::").rstrip("_")
    return next((kind for kind, names in KINDS.items() if plain in names), OTHER)


def positions_seconds(workload: Workload, times: int = 20) -> float:
    """Return the median time to compute sinusoids and mask of a segment with a full memory."""
    case, encoding = workload.case, workload.model.encoding
    like, taken = workload.model.embedding.tables[0], []
    for _ in range(times):
        start = time.perf_counter()
        encoding.positions(case.memory + case.segment, -1, like)
        attention_mask(case.segment, case.memory, case.memory, None, like)
        taken.append(time.perf_counter() - start)
    return median(taken)


COMMANDS: dict[str, tuple[Callable[[Path, int], dict[str, Any]], int, float]] = {  # with rounds and expected minutes
    "startup": (startup, 3, 0.8),
    "recl": (recl, 2, 0.8),
    "recl_losses": (recl_losses, 1, 2.0),
    "preparation": (preparation, 2, 0.8),
    "checkpoints": (checkpoint_cost, 2, 0.8),
    "validation": (validation_cost, 3, 2.0),
    "profile": (step_profiles, 5, 1.5),
}
