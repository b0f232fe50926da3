"""Further ranks of a run on this machine, each a process that ends with the first one."""

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
from txl_lightning.jobs import POLL_SECONDS, Process

SECONDS_TO_END = 20.0  # from the end of rank 0 to the end of the others
SECONDS_TO_FAIL = 3.0  # a rank that lost its connection fails because another one did: that one must be found first


@contextmanager
def further_ranks(n_ranks: int, program: str, arguments: Any) -> Iterator[None]:
    """Run the block as rank 0, beside processes of the other ranks, which meet it in a file that only this user opens.

    Args:
        n_ranks: number of ranks, this one among them.
        program: module that a rank runs with the path of a file: its arguments, pickled.
        arguments: arguments of the program.

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
            _wait_until_met(Path(folder), others)
            with leaving():
                yield
                _wait(others, SECONDS_TO_END)
        except RuntimeError as error:  # of a lost connection
            _wait(others, SECONDS_TO_FAIL)
            raise_for(others, error)
            raise
        finally:
            for process in others:
                process.end(signal.SIGKILL)
            _wait_for_all(others)
            os.environ.clear()
            os.environ.update(before)


def _variables(folder: str, n_ranks: int, n_threads: int) -> dict[str, str]:
    """Return the variables of all ranks. Lightning knows by TORCHELASTIC_RUN_ID that the processes are ranks."""
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


def _wait_until_met(folder: Path, others: list[Process]) -> None:
    """Wait until every rank is about to join: torch would wait half an hour for one that failed before."""
    while len(list(folder.glob("rank*"))) < len(others):
        raise_for(others, None)
        time.sleep(POLL_SECONDS)


def _wait(others: list[Process], seconds: float) -> None:
    """Wait until all ranks have ended, or one of them has failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ends = [process.poll() for process in others]
        if all(ends) or any(ended is not None and ended.status for ended in ends):
            return
        time.sleep(POLL_SECONDS)


def _wait_for_all(others: list[Process]) -> None:
    while not all(process.poll() for process in others):
        time.sleep(POLL_SECONDS)


def raise_for(others: list[Process], cause: Exception | None) -> None:
    """Raise the error of the first rank that failed.

    Raises:
        UserError: names it.
    """
    for rank, process in enumerate(others, 1):
        ended = process.poll()
        if ended is not None and ended.status:
            raise UserError(f"rank {rank} {ended.problem}; the other ranks were stopped") from cause
