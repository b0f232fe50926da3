"""Number of CPU threads of a training run where the config says null."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import n_processes

# Operations of a layer in a training step that pay for a thread, measured on two cores (BENCHMARKS.md, "Threads").
FLOPS_PER_THREAD = 0.15e9


def fastest_threads(n_parameters: int, n_layer: int, tokens: int, available: int) -> int:
    """Return the number of threads that trains fastest: one for a small model, more for a larger one.

        threads = 6 · parameters / layers · tokens / FLOPS_PER_THREAD, from 1 to those available

    Threads share the work of one product at a time, so that the work of a layer decides, not that of the model.

    Args:
        n_parameters: number of trained parameters.
        n_layer: N, layers.
        tokens: tokens that are computed at a time.
        available: threads that torch would use.
    """
    flops = 6 * n_parameters / n_layer * tokens
    return max(1, min(available, int(flops / FLOPS_PER_THREAD)))


def resolve_threads(config: Config, n_parameters: int, checkpoint: dict[str, Any] | None = None) -> Config:
    """Set torch's threads where `trainer.num_threads` is null, and return the config with their number.

    The number is part of the run's record, since the order of summation depends on it: a resumed run keeps that of its
    checkpoint. Several processes share torch's threads instead, and a run on a GPU has torch's default.

    Args:
        config: config of the run.
        n_parameters: number of trained parameters.
        checkpoint: contents of the checkpoint that the run resumes from.
    """
    trainer = config.trainer
    if trainer.num_threads is not None or trainer.accelerator != "cpu" or n_processes(trainer) > 1:
        return config
    if checkpoint is not None:  # null in the record of an earlier version, which used torch's default
        before = checkpoint["txl_lightning"]["config"]["trainer"].get("num_threads")
        threads = before or torch.get_num_threads()
        which = f"CPU thread{'' if threads == 1 else 's'}, as before"
    else:
        tokens = config.data.batch_size * config.data.segment_len // trainer.column_chunks
        available = torch.get_num_threads()
        threads = fastest_threads(n_parameters, config.model.n_layer, tokens, available)
        which = f"of {available} CPU threads, the fastest for this model"
    torch.set_num_threads(threads)
    print(f"trainer.num_threads=null: training with {threads} {which}", file=sys.stderr, flush=True)
    return replace(config, trainer=replace(trainer, num_threads=threads))
