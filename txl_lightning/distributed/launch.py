"""Several processes on this machine, started and supervised by torch's elastic multiprocessing.

They meet in a file that only this user can open, and talk over the loopback: no other machine reaches them.
"""

from __future__ import annotations

import builtins
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from txl_lightning.distributed.environment import MEETING
from txl_lightning.distributed.parent_watch import end_with_parent, handle_stop_signals
from txl_lightning.errors import Stopped, UserError

# A rank that loses its connection fails because another one did: that one must be found first.
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer")
LEAD_SECONDS = 3.0
SECONDS_TO_STOP = 20.0  # from the first rank that a signal ended to the last
LOOPBACK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo" if sys.platform == "linux" else "lo0")


def run_on_all(function: Callable[..., Any], *arguments: Any, processes: int) -> Any:
    """Call `function(*arguments)` in W fresh processes in parallel, and return the result of rank 0.

    The in-process equivalent of torchrun: every process finds RANK and WORLD_SIZE in its environment and gets 1/W of
    this process's threads. Signals that stop a run are forwarded, so that every rank can save and stop. When one rank
    dies, the others get SIGTERM, and SIGKILL after 30 seconds.

    Raises:
        UserError: a rank failed; names the first one and its error.
        Stopped: a signal ended the ranks before they could agree on a step to stop after.
    """
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their messages are summed up in one UserError
    multiprocessing.set_forkserver_preload([function.__module__])  # imports torch once, before anything uses a GPU
    threads, nohup = max(1, torch.get_num_threads() // processes), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    received: list[int] = []
    with TemporaryDirectory() as folder, forwarded_signals(received):
        shared = {**os.environ, **LOOPBACK, MEETING: f"file://{folder}/meeting", "WORLD_SIZE": str(processes)}
        shared["TORCHELASTIC_RUN_ID"] = "txl"  # Lightning then knows that these processes are ranks
        given = {
            rank: ({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, nohup, threads, function, *arguments)
            for rank in range(processes)
        }
        logs, variables = DefaultLogsSpecs(log_dir=folder), {rank: dict[str, str]() for rank in given}
        try:
            others = multiprocessing.active_children()
            with forwarded_signals(received):  # the start replaces handlers
                ranks = start_processes("ranks", _worker, given, variables, logs, start_method="forkserver")
            _forward(*received[:1])  # to ranks that started after it
            deadline = math.inf
            while (ended := ranks.wait(timeout=1.0, period=0.1)) is None:
                if received and len(set(multiprocessing.active_children()) - set(others)) < processes:
                    deadline = min(deadline, time.monotonic() + SECONDS_TO_STOP)
                if time.monotonic() > deadline:  # a rank that stopped before all had met leaves others waiting for it
                    ranks.close(signal.SIGKILL)
                    raise _stopped_by(received[0])
        except SignalException as error:
            raise _stopped_by(error.sigval) from None
        except (EOFError, UnpicklingError) as error:  # a rank's error was cut off
            raise UserError(f"a rank failed, and the disk has no room for its error in {folder}") from error
    if ended.failures:
        if received:  # before training began, or at the second Ctrl-C
            raise _stopped_by(received[0])
        raise UserError(_describe(*min(ended.failures.items())))
    if received and isinstance(ended.return_values[0], Stopped):
        ended.return_values[0].signum = received[0]
    return ended.return_values[0]


@contextmanager
def forwarded_signals(received: list[int]) -> Iterator[None]:
    """Forward signals that stop a run to the child processes, which may have received them from the terminal already.

    Args:
        received: each signal is appended.
    """

    def forward(signum: int, _: Any) -> None:
        received.append(signum)
        _forward(signum)

    before = handle_stop_signals(forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forward(*signals: int) -> None:
    for child in multiprocessing.active_children() if signals else ():
        if child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signals[0])


def _worker(
    environment: dict[str, str], nohup: bool, threads: int, function: Callable[..., Any], *arguments: Any
) -> Any:
    end_with_parent()
    os.environ.update(environment)  # the fork server may have been started with another one
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the fork server
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    torch.set_num_threads(threads)
    try:
        return function(*arguments)
    except RuntimeError as error:
        if any(words in str(error) for words in LOST_CONNECTION):
            time.sleep(LEAD_SECONDS)
        raise
    except SystemExit as error:  # without a result or an error the agent would wait forever
        raise RuntimeError(f"exit status {error.code}") from error


def _stopped_by(signum: int) -> Stopped:
    return Stopped(f"stopped by {signal.Signals(signum).name}", signum)


def _describe(rank: int, failure: ProcessFailure) -> str:
    """Describe the rank that failed first; print the traceback of an unexpected error."""
    if failure.exitcode < 0:
        return f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}; the other ranks were stopped"
    if not isinstance(failure.message, dict):  # no exception was recorded
        return f"rank {rank} ended with exit status {failure.exitcode}; the other ranks were stopped"
    kind, _, text = failure.message["message"].partition(": ")
    if kind in ("UserError", "OptionError") or issubclass(getattr(builtins, kind, object), OSError):
        return text
    print(failure.message["extraInfo"]["py_callstack"], file=sys.stderr)
    return f"rank {rank} failed: {kind}: {text}; the other ranks were stopped"
