"""The processes of one run: who this one is, and what all of them know together."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.errors import Stopped, require

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run. With one process nothing is communicated.

    Every method is a collective: all ranks call it at the same place. They go over a gloo group of their own,
    whatever the gradients use: nothing waits for a GPU, and a rank that died is noticed at once, because its
    connections close.

    Args:
        rank: r.
        world_size: W.
        group: the gloo group; None for one process.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = None

    def gather(self, value: T) -> list[T] | None:
        """The values of all ranks in their order, on the first rank; None on the others."""
        if self.world_size == 1:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values

    def first(self, value: T) -> T:
        """The first rank's value, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def total(self, *values: float) -> list[float]:
        """The sums over ranks, in float64."""
        if self.world_size == 1:
            return [float(value) for value in values]
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self.group)
        return sums.tolist()

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers: of flags, whether one is set."""
        if self.world_size == 1:
            return int(number)
        largest = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def seed(self, *numbers: int) -> int:
        """A seed that differs from rank to rank, the first of `numbers` unchanged on the first rank."""
        if self.rank == 0 and len(numbers) == 1:
            return numbers[0]
        return int(np.random.SeedSequence([*numbers, self.rank]).generate_state(1)[0])


def environment() -> ClusterEnvironment | None:
    """What started the processes of this run: torchrun, SLURM, or None if nothing did."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:  # of srun, not the script
        return SLURMEnvironment(auto_requeue=False)  # Lightning's way would save from within a signal
    return None


def n_processes(options: TrainerConfig) -> int:
    """W as the configuration says: `trainer.devices` on each of `trainer.num_nodes` machines."""
    return options.devices * options.num_nodes


def connect(options: TrainerConfig) -> Ranks:
    """Join the other processes of this run, if torchrun or SLURM started several.

    Raises:
        OptionError: they started another number of processes than the configuration says.
    """
    started = environment()
    world_size = 1 if started is None else started.world_size()
    require(
        n_processes(options) == world_size,
        "trainer.devices",
        options.devices,
        f"times trainer.num_nodes={options.num_nodes} must be the {world_size} processes that were started",
    )
    if started is None or world_size == 1:
        return Ranks()
    if not dist.is_initialized():
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = started.main_address, str(started.main_port)
        backend = "gloo"
        if options.accelerator == "gpu":
            torch.cuda.set_device(started.local_rank())
            backend = "nccl"
        dist.init_process_group(backend, rank=started.global_rank(), world_size=world_size)
    return Ranks(started.global_rank(), world_size, dist.new_group(backend="gloo"))


@contextmanager
def leaving() -> Iterator[None]:
    """Leaves the other processes when all of them are done or were stopped, if this one had joined any.

    A thread of gloo or NCCL that outlives the interpreter aborts the process. After an error nobody waits: the
    other ranks may be gone.
    """
    try:
        yield
    except Stopped:
        leave()
        raise
    leave()


def leave() -> None:
    """End the process groups and their threads, which end with the last references, in cycles of module and trainer."""
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
