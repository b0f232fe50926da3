"""Hardware for a run or a measurement: what `auto` and null mean for accelerator, precision and threads."""

from __future__ import annotations

import time
import timeit
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

import torch

from txl_lightning.config.schemas import Config
from txl_lightning.evaluation.models import Model
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.ranks import n_processes

# A second thread gains 1.6 times from twice this on, measured on two cores (BENCHMARKS.md, "Threads"). Below it gains
# less than it costs beside another program: each product then waits for the thread whose core is taken.
FLOPS_PER_THREAD = 3e9
NEEDED_SPEEDUP = 1.2  # for products; mixed precision also converts the weights in every step


def resolve_accelerator(config: Config) -> Config:
    """Return the config with gpu, else mps for one process, else cpu instead of `trainer.accelerator=auto`."""
    if config.trainer.accelerator != "auto":
        return config
    accelerator = "cpu"
    if torch.cuda.is_available():
        accelerator = "gpu"
    elif torch.backends.mps.is_available() and n_processes(config.trainer) == 1:
        accelerator = "mps"
    return replace(config, trainer=replace(config.trainer, accelerator=accelerator))


def resolve_precision(config: Config, resumed: Config | None = None) -> Config:
    """Return the config with number types instead of `auto`; its accelerator is resolved.

    They belong to the run's identity: they stand in `config.yaml` and in checkpoints, and a resumed run keeps them.

    Args:
        config: the run's config.
        resumed: config from the checkpoint that the run resumes from.
    """
    trainer = config.trainer
    optimizer = config.optimizer
    if trainer.precision == "auto":
        precision = resumed.trainer.precision if resumed else fastest_precision(trainer.accelerator)
        trainer = replace(trainer, precision=precision)
    if optimizer.ns_precision == "auto":
        in_float32 = optimizer.name == "muon" and not trainer.precision.endswith("-mixed")
        ns_precision = "32-true" if in_float32 else "bf16-true"
        if resumed is not None:
            ns_precision = resumed.optimizer.ns_precision
        optimizer = replace(optimizer, ns_precision=ns_precision)
    return replace(config, trainer=trainer, optimizer=optimizer)


def fastest_precision(accelerator: str) -> str:
    """Return what this machine computes fastest.

        bf16-mixed    a GPU with bfloat16, or a CPU with `cpu_bfloat16_speedup` of at least `NEEDED_SPEEDUP`
        32-true       everything else

    Some CPUs have bfloat16 instructions that are slower than float32's: only a measurement tells.

    Args:
        accelerator: `gpu`, `mps`, or anything else for the CPU.
    """
    if accelerator == "mps":
        return "32-true"
    if accelerator == "gpu":
        is_faster = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    else:
        is_faster = cpu_has_bfloat16() and cpu_bfloat16_speedup() >= NEEDED_SPEEDUP
    return "bf16-mixed" if is_faster else "32-true"


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16 matrices in hardware (torch's private CPU flags)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def cpu_bfloat16_speedup() -> float:
    """Return bfloat16's speed relative to float32, for one thread that multiplies a small model's matrices.

    The best among several turns counts, in CPU time: other programs may wait for the same core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for dtype in (torch.float32, torch.bfloat16):
            factors = {
                "x": torch.ones(1024, 96, dtype=dtype),
                "W": torch.ones(96, 384, dtype=dtype),
            }
            turns = timeit.repeat(
                "x @ W", timer=time.thread_time, repeat=20, number=5, globals=factors
            )
            seconds.append(min(turns))
        return seconds[0] / seconds[1]
    finally:
        torch.set_num_threads(threads)


def chosen_precision(precision: str, accelerator: str) -> str:
    """Return a measurement's precision: as given, or for `auto` the `fastest_precision`."""
    if precision == "auto":
        return fastest_precision(accelerator)
    return precision


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context in which a model scores in this precision.

    With bf16-mixed, products are in bfloat16, and weights, residual sums and losses in float32. With 32-true the
    model is used as it is.

    Args:
        precision: from `chosen_precision`.
        device: the model's device.
    """
    return torch.autocast(
        device.type,
        torch.bfloat16,
        enabled=precision == "bf16-mixed",
    )


def useful_threads(config: Config, model: Model) -> int:
    """Return the number of threads that speeds up a training step.

        threads = 6 · parameters / layers · tokens / FLOPS_PER_THREAD, from 1 to as many as torch would use

    Threads share one product at a time. So the work in a layer decides, not in the whole model, and the number of
    tokens in a group of streams.
    """
    tokens = config.data.batch_size * config.data.segment_len // config.trainer.stream_groups
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = 6 * n_parameters / config.model.n_layer * tokens
    return max(1, min(torch.get_num_threads(), int(flops / FLOPS_PER_THREAD)))


def resolve_threads(config: Config, model: Model, resumed: Config | None = None) -> Config:
    """Set torch's threads where `trainer.num_threads` is null, and return the config with their number.

    The number belongs to the run's record, since the summation order depends on it: a resumed run keeps its
    checkpoint's number. Several processes share torch's threads instead, and a run on a GPU has torch's default.

    Args:
        config: the run's config.
        model: the run's model.
        resumed: config from the checkpoint that the run resumes from.
    """
    trainer = config.trainer
    if trainer.num_threads is not None or trainer.accelerator != "cpu" or n_processes(trainer) > 1:
        return config
    threads = useful_threads(config, model)
    if resumed is not None:
        threads = resumed.trainer.num_threads or threads
    torch.set_num_threads(threads)
    return replace(config, trainer=replace(trainer, num_threads=threads))


def set_threads(given: int | None, *trained: TrainedModel) -> None:
    """Set torch's threads for a measurement: as given, else as many as the largest model would train with.

    Args:
        given: a command's `num_threads`.
        trained: models from checkpoints; without one, null leaves torch's default.
    """
    if given is None and trained:
        given = max(useful_threads(one.config, one.model) for one in trained)
    if given is not None:
        torch.set_num_threads(given)
