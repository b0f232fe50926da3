"""Several processes on this machine, started and supervised by torch's elastic agent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from txl_lightning.distributed.parent_watch import end_with_parent
from txl_lightning.errors import Stopped, UserError

# A rank that loses its connection fails because another one did: that one must be found first.
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer")
LEAD_SECONDS = 3.0


def run_on_all(function: Callable[..., Any], *arguments: Any, processes: int) -> Any:
    """Call `function(*arguments)` in W fresh processes in parallel, and return the result of rank 0.

    The in-process equivalent of torchrun: every process finds RANK, WORLD_SIZE and the address of rank 0 in its
    environment and gets 1/W of this process's threads. SIGTERM and SIGINT are forwarded, so that every rank can
    save and stop. When one rank dies, the others get SIGTERM, and SIGKILL after 30 seconds.

    Raises:
        UserError: a rank failed; names the first one and its error.
        Stopped: a signal ended the ranks before they could agree on a step to stop after.
    """
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their messages are summed up in one UserError
    multiprocessing.set_forkserver_preload([function.__module__])
    threads = max(1, torch.get_num_threads() // processes)
    with TemporaryDirectory() as logs, forwarded_signals() as received:
        try:
            results = elastic_launch(_launch_config(processes, logs), _worker)(
                dict(os.environ), threads, function, *arguments
            )
        except SignalException as error:
            raise _stopped_by(error.sigval) from None
        except ChildFailedError as error:
            if received:  # before training began, or at the second Ctrl-C
                raise _stopped_by(received[0]) from None
            raise UserError(_describe(*error.get_first_failure())) from None
    if received and isinstance(results[0], Stopped):
        results[0].signum = received[0]
    return results[0]


@contextmanager
def forwarded_signals() -> Iterator[list[int]]:
    """Forward SIGTERM and SIGINT to the child processes, which may have received them from the terminal already.

    Yields:
        The signals received so far.
    """
    received: list[int] = []

    def forward(signum: int, _: Any) -> None:
        received.append(signum)
        for child in multiprocessing.active_children():
            if child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signum)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _launch_config(processes: int, logs: str) -> LaunchConfig:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="forkserver",  # imports torch once for all ranks, and before anything uses a GPU
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
    if hasattr(config, "signals_to_handle"):  # before torch 2.9 the agent always forwards signals, and waits 30 s
        config.signals_to_handle = "SIGQUIT"
    return config


def _worker(environment: dict[str, str], threads: int, function: Callable[..., Any], *arguments: Any) -> Any:
    end_with_parent()
    os.environ.update(environment)  # the fork server may have been started with another one
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the fork server
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
    if kind in ("UserError", "OptionError"):
        return text
    print(failure.message["extraInfo"]["py_callstack"], file=sys.stderr)
    return f"rank {rank} failed: {kind}: {text}; the other ranks were stopped"
