"""Further ranks on this machine, each a process that ends with the first one.

Lightning's launcher (2.6) is not used, for these reasons:

- It leaves the other ranks running when the first one is killed. Another rank's death is seen within five seconds and
  ends the first one with SIGKILL: no message, no exit code in W&B, and in a multirun the wrong error.
- It runs `sys.argv` again in every rank, so `train` in a notebook, or in a program started with `-m`, would start that
  instead.
- Its rendezvous listens on all addresses and unpickles what it gets. These ranks meet in a file.

With `torchrun` or SLURM this file is not used.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from txl_lightning.distributed.ranks import MEETING, leaving
from txl_lightning.errors import UserError
from txl_lightning.jobs import POLL_SECONDS, Process, problem

SECONDS_TO_END = 20.0  # from the end of rank 0 until all ranks must have ended
SECONDS_TO_FAIL = 3.0  # a rank that lost its connection fails because another one did: that one must be found first


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
                others.append(Process(words, place, is_leader=False, last_signal=signal.SIGKILL))
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
        if all(process.status == 0 for process in others):
            return
        time.sleep(POLL_SECONDS)
