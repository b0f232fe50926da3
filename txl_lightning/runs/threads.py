"""Number of CPU threads where the options say null."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import n_processes
from txl_lightning.runs.trained import TrainedModel

# A second thread gains 1.6 times from twice this on, measured on two cores (BENCHMARKS.md, "Threads"). Below it gains
# less than it costs beside another program: each product then waits for the thread whose core is taken.
FLOPS_PER_THREAD = 3e9


def useful_threads(n_parameters: int, n_layer: int, tokens: int, available: int) -> int:
    """Return the number of threads that a training step pays for.

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


def _of_training(config: Config, n_parameters: int) -> int:
    tokens = config.data.batch_size * config.data.segment_len // config.trainer.stream_groups
    return useful_threads(n_parameters, config.model.n_layer, tokens, torch.get_num_threads())


def resolve_threads(config: Config, n_parameters: int, resumed: Config | None = None) -> Config:
    """Set torch's threads where `trainer.num_threads` is null, and return the config with their number.

    The number is part of the run's record, since the order of summation depends on it: a resumed run keeps that of its
    checkpoint. Several processes share torch's threads instead, and a run on a GPU has torch's default.

    Args:
        config: config of the run.
        n_parameters: number of trained parameters.
        resumed: config of the checkpoint that the run resumes from.
    """
    trainer = config.trainer
    if trainer.num_threads is not None or trainer.accelerator != "cpu" or n_processes(trainer) > 1:
        return config
    available = torch.get_num_threads()
    if resumed is not None:  # null in the record of an earlier version, which used torch's default
        threads = resumed.trainer.num_threads or available
        why = f"{_count(threads)}, as before"
    else:
        threads = _of_training(config, n_parameters)
        gain = "more would gain less than 1.6 times" if threads < available else "each pays"
        why = f"{threads} of {_count(available)}: {gain} at this size"
    torch.set_num_threads(threads)
    print(f"trainer.num_threads=null: training with {why}", file=sys.stderr, flush=True)
    return replace(config, trainer=replace(trainer, num_threads=threads))


def set_threads(given: int | None, *trained: TrainedModel) -> None:
    """Set torch's threads for a measurement: as given, else those that the largest of the models would train with.

    Args:
        given: `num_threads` of a command.
        trained: models of checkpoints; without one, null leaves torch's default.
    """
    if given is not None:
        torch.set_num_threads(given)
    elif trained:
        torch.set_num_threads(
            max(_of_training(one.config, sum(p.numel() for p in one.model.parameters())) for one in trained)
        )


def _count(threads: int) -> str:
    return f"{threads} CPU thread{'' if threads == 1 else 's'}"
