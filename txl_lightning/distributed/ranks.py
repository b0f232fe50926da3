"""Ranks: the processes that share one run, and the values that they exchange."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from txl_lightning.errors import Stopped

if TYPE_CHECKING:
    from txl_lightning.config.schemas import TrainerConfig

T = TypeVar("T")
PREPARATION_LIMIT = timedelta(days=1)  # half an hour, the limit of other collectives, is short for a large corpus


@dataclass(frozen=True)
class Ranks:
    """Rank r of W processes that train together. With W = 1 nothing is communicated.

    Every method but `seed` and `report` is a collective: all ranks must call it, in the same order. They use a
    gloo group of their own, whatever the gradients use: they do not wait for a GPU, and they fail at once when a
    rank dies, because its connections close.

    Args:
        rank: r.
        world_size: W.
        group: the gloo group; None for one process.
        local_rank: rank among the processes of this machine.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = None
    local_rank: int = 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, ordered by rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def collect(self, value: T) -> list[T]:
        """Return the values of all ranks on rank 0, ordered by rank; none on the others."""
        values = [value] * (self.world_size if self.rank == 0 else 0)
        if self.world_size > 1:
            dist.gather_object(value, values or None, group=self.group)
        return values

    def first(self, value: T) -> T:
        """Return the value of rank 0 on every rank."""
        return self.gather(value)[0]

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks, in float64."""
        return [float(sum(of_ranks)) for of_ranks in zip(*self.gather(values), strict=True)]

    def largest(self, number: int) -> int:
        """Return the maximum over all ranks; for flags, 1 if any rank has it set."""
        if self.world_size == 1:
            return int(number)
        largest = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def in_turn(self, prepare: Callable[[], T]) -> T:
        """Call `prepare` on the first rank of every machine, then on the others, which find its files on disk.

        Each rank gets the value, or the error, of its own call.
        """
        if self.world_size == 1:
            return prepare()
        try:
            if self.local_rank == 0:
                return prepare()
        finally:  # after an error too, because the others wait
            dist.monitored_barrier(self.group, timeout=PREPARATION_LIMIT)
        return prepare()

    def report(self, *lines: str) -> None:
        """Print lines on stderr, on rank 0 alone."""
        if self.rank == 0:
            print(*lines, sep="\n", file=sys.stderr, flush=True)

    def seed(self, *numbers: int) -> int:
        """Return a seed that differs between ranks; rank 0 keeps a single number unchanged."""
        if self.rank == 0 and len(numbers) == 1:
            return numbers[0]
        return int(np.random.SeedSequence([*numbers, self.rank]).generate_state(1)[0])


def n_processes(options: TrainerConfig) -> int:
    """Return W = `trainer.devices` · `trainer.num_nodes`."""
    return options.devices * options.num_nodes


@contextmanager
def leaving() -> Iterator[None]:
    """Leave the process groups when the block ends or the run is stopped.

    A gloo or NCCL thread that outlives the interpreter aborts the process. After any other error the groups stay:
    leaving waits for the other ranks, and they may be gone.
    """
    stopped = None
    try:
        yield
    except Stopped as error:
        stopped = error
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # module and trainer hold the threads of the groups in cycles
    if stopped is not None:
        raise stopped


def own_gpu(local_rank: int) -> torch.device:
    """Return the GPU of a process, which becomes the current one: the only one that it sees, or one for each rank."""
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
