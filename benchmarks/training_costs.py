"""Costs of training steps: by kind of operation, and with and without checkpoints and validation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from hydra import compose, initialize_config_dir
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import BF16, COMPARISONS, FLOAT32, BenchmarkCase
from benchmarks.worker import TrainingWorkload, make_workload
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.model.positions import attention_mask
from txl_lightning.training.run import train

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


def checkpoint_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = EVERY, steps: int = STEPS
) -> dict[str, Any]:
    """Time training steps with a checkpoint every `every` steps and without, `rounds` times each.

    Returns:
        `with` and `without` (seconds of each round), `every`, `steps`, and the `bytes` of a checkpoint.
    """
    ways = {name: (f"checkpoint.enabled={name == 'with'}", f"checkpoint.every_n_steps={every}") for name in WAYS}
    seconds = in_turns(scratch, rounds, ways, *CHECKPOINTS, f"trainer.max_steps={steps}", *overrides)
    size = (scratch / "with-0" / "checkpoints" / "last.ckpt").stat().st_size
    return {**seconds, "every": every, "steps": steps, "bytes": size}


def validation_cost(
    scratch: Path, rounds: int, *overrides: str, every: int = VALIDATED_EVERY, steps: int = VALIDATED_STEPS
) -> dict[str, Any]:
    """Time training steps of the laptop profile with a validation every `every` steps and with the last one alone.

    Returns:
        `with` and `without` (seconds of each round), `every` and `steps`.
    """
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
        `shares`: for each "case, precision" the share of the step's time by kind of operation, and under
        `positions and mask` the share that computing both anew in every step takes, measured without the profiler.
    """
    found = {}
    for name, steps in warmup.items():
        for precision in (FLOAT32, BF16):
            sizes = replace(COMPARISONS["training"][name].sizes, precision=precision)
            found[f"{name}, {precision}"] = shares(sizes, rounds, steps)
    return {"shares": found}


def shares(case: BenchmarkCase, steps: int, warmup: int) -> dict[str, float]:
    """Return the share of a step's time by kind of operation, in the fastest of several passes."""
    workload = make_workload("training", "ours", case)
    assert isinstance(workload, TrainingWorkload)
    workload.run(warmup)
    step_seconds = workload.run(steps) / steps
    spent = min((time_by_kind(workload, steps) for _ in range(PASSES)), key=lambda of_pass: sum(of_pass.values()))
    total = sum(spent.values())
    return {
        **{kind: of_kind / total for kind, of_kind in spent.items()},
        KEPT: positions_seconds(workload) / step_seconds,
    }


def time_by_kind(workload: TrainingWorkload, steps: int) -> dict[str, float]:
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


def positions_seconds(workload: TrainingWorkload, times: int = 20) -> float:
    """Return the median time to compute sinusoids and mask of a segment with a full memory."""
    case, encoding = workload.case, workload.model.encoding
    like, taken = workload.model.embedding.tables[0], []
    for _ in range(times):
        start = time.perf_counter()
        encoding.positions(case.memory + case.segment, -1, like)
        attention_mask(case.segment, case.memory, case.memory, None, like)
        taken.append(time.perf_counter() - start)
    return median(taken)
