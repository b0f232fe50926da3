"""A run of several processes on this machine, started and watched by torch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from txl_lightning.errors import Stopped, UserError


def run_on_all(function: Callable[..., Any], *arguments: Any, processes: int) -> Any:
    """Call `function(*arguments)` in W fresh processes at once, and return the first rank's result.

    This is what torchrun does, from within: each finds RANK, WORLD_SIZE and the others' address in its
    environment and has its share of this process's threads. SIGTERM and SIGINT are passed on, so that every
    rank can save and stop. When one dies, the others are stopped (within 30 seconds; killed then).

    Raises:
        UserError: naming the rank that failed first and how.
        Stopped: a signal ended the ranks before they could agree on a step to stop after.
    """
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their news come as one UserError
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
        start_method="spawn",
    )
    if hasattr(config, "signals_to_handle"):  # else (before torch 2.9) the agent passes signals on, and waits 30 s
        config.signals_to_handle = "SIGQUIT"
    threads = max(1, torch.get_num_threads() // processes)
    with TemporaryDirectory() as logs, signals_passed_on() as came:
        config.logs_specs = DefaultLogsSpecs(log_dir=logs)
        try:
            results = elastic_launch(config, _worker)(os.getpid(), threads, function, *arguments)
        except SignalException as error:
            raise Stopped(f"stopped by {signal.Signals(error.sigval).name}", error.sigval) from None
        except ChildFailedError as error:
            if came:  # before training began, or at the second Ctrl-C
                raise Stopped(f"stopped by {signal.Signals(came[0]).name}", came[0]) from None
            raise UserError(_text(*error.get_first_failure())) from None
    if came and isinstance(results[0], Stopped):
        results[0].signum = came[0]
    return results[0]


def end_with_parent(parent: int) -> None:
    """End this process when `parent`, its parent, is gone: nobody would watch it or read its result."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end_with_parent").start()


@contextmanager
def signals_passed_on() -> Iterator[list[int]]:
    """SIGTERM and SIGINT reach the processes that were started from here, which may have had them already.

    Yields the signals that came.
    """
    came: list[int] = []

    def pass_on(signum: int, _: Any) -> None:
        came.append(signum)
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signum)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _worker(parent: int, threads: int, function: Callable[..., Any], *arguments: Any) -> Any:
    end_with_parent(parent)
    torch.set_num_threads(threads)
    try:
        return function(*arguments)
    except SystemExit as error:  # without a result or an error the agent would wait for ever
        raise RuntimeError(f"exit status {error.code}") from error


def _text(rank: int, failure: ProcessFailure) -> str:
    """What to say of the rank that brought the others down; the traceback of a defect goes to stderr."""
    if failure.exitcode < 0:
        return f"rank {rank} died of {signal.Signals(-failure.exitcode).name}; the other ranks were stopped"
    if not isinstance(failure.message, dict):  # it left no exception
        return f"rank {rank} ended with exit status {failure.exitcode}; the other ranks were stopped"
    kind, _, text = failure.message["message"].partition(": ")
    if kind in ("UserError", "OptionError"):
        return text
    print(failure.message["extraInfo"]["py_callstack"], file=sys.stderr)
    return f"rank {rank} failed: {kind}: {text}; the other ranks were stopped"
