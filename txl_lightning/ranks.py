"""Ranks: the processes that share one run, who starts them, and the values that they exchange.

torchrun or SLURM starts the ranks; without them `further_ranks` does. Lightning's launcher (2.6.6) trains the same, and
was tried with two ranks on a CPU:

- Rank 0 killed, or ended by SIGTERM, before the ranks have met: rank 1 still waited for it after a minute. Here it ends
  with rank 0.
- Rank 1 killed: rank 0 ended after two seconds with a traceback of gloo, which names no rank. Here the last line is
  `rank 1 was killed by SIGKILL; the other ranks were stopped`.
- `train` in a program read from standard input, as in a notebook: the launcher runs `sys.argv` again, finds no file
  and kills rank 0 too.
- Its rendezvous listens on all addresses and unpickles what it gets. These ranks meet in a file.

torch.multiprocessing runs a program without `if __name__ == "__main__"` again in every rank. The agent of torchrun
leaves its signal handlers in the caller, and has Lightning's rendezvous.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from txl_lightning.errors import Stopped, UserError, require
from txl_lightning.jobs import POLL_SECONDS, Process, problem

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments import ClusterEnvironment

    from txl_lightning.config.schemas import TrainerConfig

T = TypeVar("T")
MEETING = "TXL_MEETING"  # variable: folder in which ranks on one machine meet
PREPARATION_LIMIT = timedelta(
    days=1
)  # other collectives wait half an hour: too short for a large corpus
SECONDS_TO_END = 20.0  # from the end of rank 0 until all ranks must have ended
SECONDS_TO_FAIL = 3.0  # a rank that lost its connection fails because another one did: that one must be found first
KEPT_BYTES = 1 << 30
M_TRIM_THRESHOLD = -1  # numbers for glibc's mallopt(3)
M_MMAP_THRESHOLD = -3


@dataclass(frozen=True)
class Ranks:
    """Rank r among W processes that train together. With W = 1 nothing is communicated.

    Every method except `seed` and `report` is a collective: all ranks must call it, in the same order. They use a
    separate gloo group, whatever the gradients use: they do not wait for a GPU, and they fail at once when a rank dies,
    because its connections close.

    Args:
        rank: r.
        world_size: W.
        group: gloo group for a training; None for one process, or for the default group, as in `all_gather`.
        local_rank: rank among this machine's processes.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = None
    local_rank: int = 0

    def gather(self, value: T) -> list[T]:
        """Return the values from all ranks, ordered by rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def first(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        return self.gather(value)[0]

    def total(self, *values: float) -> list[float]:
        """Return each value summed over all ranks, in float64."""
        return [float(sum(of_ranks)) for of_ranks in zip(*self.gather(values), strict=True)]

    def largest(self, number: int) -> int:
        """Return the maximum over all ranks; for flags, 1 if any rank has it set."""
        if self.world_size == 1:
            return int(number)
        largest = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def in_turn(self, prepare: Callable[[], T]) -> T:
        """Call `prepare` on the first rank on every machine, then on the rest: they find its files on disk.

        Each rank gets the value or the error from its call.
        """
        if self.world_size == 1:
            return prepare()
        try:
            if self.local_rank == 0:
                return prepare()
        finally:  # after an error too: the other ranks wait
            dist.monitored_barrier(self.group, timeout=PREPARATION_LIMIT)
        return prepare()

    def report(self, *lines: str) -> None:
        """Print lines on stderr, on rank 0 alone."""
        if self.rank == 0:
            print(*lines, sep="\n", file=sys.stderr, flush=True)

    def seed(self, *numbers: int) -> int:
        """Return a seed that differs between ranks."""
        return int(np.random.SeedSequence([*numbers, self.rank]).generate_state(1)[0])


def n_processes(options: TrainerConfig) -> int:
    """Return W = `trainer.devices` · `trainer.num_nodes`."""
    return options.devices * options.num_nodes


def environment() -> ClusterEnvironment | None:
    """Return the launcher that started this run's processes (torchrun or SLURM); None without one."""
    from lightning.fabric.plugins.environments import (  # for training alone
        SLURMEnvironment,
        TorchElasticEnvironment,
    )

    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    # SLURM_STEP_NUM_TASKS is set by srun only; a batch script that runs txl directly is one process.
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return SLURMEnvironment(
            auto_requeue=False
        )  # Lightning's requeue saves from inside a signal handler
    return None


def connect(options: TrainerConfig) -> Ranks:
    """Join the other processes in this run, if torchrun or SLURM started several.

    Raises:
        OptionError: torchrun or SLURM started more or fewer processes than configured.
    """
    started = environment()
    world_size = 1 if started is None else started.world_size()
    product = f"with trainer.num_nodes={options.num_nodes} the product must be {world_size}"
    allowed = f"{product}, the number of started processes"
    require(n_processes(options) == world_size, "trainer.devices", options.devices, allowed)
    if started is None or world_size == 1:
        return Ranks()
    if not dist.is_initialized():
        _join(started, world_size, on_gpu=options.accelerator == "gpu")
    return Ranks(
        started.global_rank(), world_size, dist.new_group(backend="gloo"), started.local_rank()
    )


def _join(started: ClusterEnvironment, world_size: int, on_gpu: bool) -> None:
    """Join the default process group."""
    rank = started.global_rank()
    backend = "gloo"
    device = None
    if on_gpu:
        backend = "nccl"
        device = own_gpu(started.local_rank())
    address = "env://"
    folder = os.environ.get(MEETING)
    if folder is not None:
        address = f"file://{folder}/meeting"
        Path(folder, f"rank{rank}").touch()
    else:
        os.environ["MASTER_ADDR"] = started.main_address
        os.environ["MASTER_PORT"] = str(started.main_port)
    dist.init_process_group(backend, address, rank=rank, world_size=world_size, device_id=device)


@contextmanager
def further_ranks(n_ranks: int, program: str, arguments: Any) -> Iterator[None]:
    """Run the block as rank 0, beside processes for the other ranks. They meet in a file that only this user can open.

    Args:
        n_ranks: all ranks, including this one.
        program: module that a rank runs, given the path to its pickled arguments.
        arguments: passed to the program.

    Raises:
        UserError: another rank failed.
    """
    before = dict(os.environ)
    n_threads = max(1, torch.get_num_threads() // n_ranks)
    others: list[Process] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "arguments"
        path.write_bytes(pickle.dumps(arguments))
        os.environ.update(_variables(folder, n_ranks, n_threads))
        try:
            for rank in range(1, n_ranks):
                words = [sys.executable, "-m", program, str(path)]
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                others.append(Process(words, place, last_signal=signal.SIGKILL))
            torch.set_num_threads(n_threads)
            # Rank 0 joins last: torch would wait half an hour for a rank that failed before.
            while len(list(Path(folder).glob("rank*"))) < len(others):
                _wait(others, POLL_SECONDS)
            with leaving():
                yield
                _wait(others, SECONDS_TO_END)
        except RuntimeError as error:  # from a lost connection
            _wait(others, SECONDS_TO_FAIL, error)
            raise
        finally:
            for process in others:
                process.kill()
                process.wait()
            os.environ.clear()
            os.environ.update(before)


def _variables(folder: str, n_ranks: int, n_threads: int) -> dict[str, str]:
    """Return the variables for all ranks. TORCHELASTIC_RUN_ID tells Lightning that the processes are ranks."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(n_ranks),
        "TORCHELASTIC_RUN_ID": "txl",
        "OMP_NUM_THREADS": str(n_threads),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        MEETING: folder,
    }


def _wait(others: list[Process], seconds: float, cause: Exception | None = None) -> None:
    """Wait until all ranks have ended.

    Raises:
        UserError: names the first rank that failed.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for rank, process in enumerate(others, 1):
            status = process.poll()
            if status:
                how = problem(status)
                raise UserError(f"rank {rank} {how}; the other ranks were stopped") from cause
        if all(process.returncode == 0 for process in others):
            return
        time.sleep(POLL_SECONDS)


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB in freed blocks for the next tensors.

    By default it returns each large block to Linux. Linux fills it with zeros before it lends it again: with logits
    that take 33 MB, a training step on a CPU took 10 % longer (BENCHMARKS.md). Other systems and C libraries are left
    alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)


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
        gc.collect()  # module and trainer hold the groups' threads in cycles
    if stopped is not None:
        raise stopped


@contextmanager
def process_group() -> Iterator[None]:
    """Create the process group that RANK and WORLD_SIZE describe (as torchrun sets them), unless there is one.

    The backend is gloo: evaluation exchanges losses in main memory.
    """
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def own_gpu(local_rank: int) -> torch.device:
    """Return a process's GPU and make it the current one: the only GPU it sees, or one for each rank."""
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def rank_and_world_size() -> tuple[int, int]:
    """Return r and W in the default process group; 0 and 1 without one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_gather(part: T) -> list[T]:
    """Return the parts from all ranks, ordered by rank, on every rank in the default process group."""
    return Ranks(*rank_and_world_size()).gather(part)
