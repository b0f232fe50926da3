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
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from txl_lightning.errors import UserError


def run_on_all(function: Callable[..., Any], *arguments: Any, processes: int) -> Any:
    """Call `function(*arguments)` in W fresh processes at once, and return the first rank's result.

    This is what torchrun does, from within: each finds RANK, WORLD_SIZE and the others' address in its
    environment and has its share of this process's threads. SIGTERM and SIGINT are passed on, so that every
    rank can save and stop. When one dies, the others are stopped (within 30 seconds; killed then).

    Raises:
        UserError: naming the rank that failed first and how.
    """
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their news come as one UserError
    config = LaunchConfig(
        signals_to_handle="SIGQUIT",  # the others are passed on below
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
    threads = max(1, torch.get_num_threads() // processes)
    with signals_passed_on():
        try:
            results = elastic_launch(config, _worker)(os.getpid(), threads, function, *arguments)
        except ChildFailedError as error:
            raise UserError(_first_failure(error.failures)) from None
    return results[0]


def end_with_parent(parent: int) -> None:
    """End this process when `parent`, its parent, is gone: nobody would watch it or read its result."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end_with_parent").start()


@contextmanager
def signals_passed_on() -> Iterator[None]:
    """SIGTERM and SIGINT reach the processes that were started from here; a second SIGINT kills them."""
    pressed = 0

    def pass_on(signum: int, _: Any) -> None:
        nonlocal pressed
        pressed += signum == signal.SIGINT
        for child in psutil.Process().children():
            child.send_signal(signal.SIGKILL if pressed > 1 else signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _worker(parent: int, threads: int, function: Callable[..., Any], *arguments: Any) -> Any:
    end_with_parent(parent)
    torch.set_num_threads(threads)
    return function(*arguments)


def _first_failure(failures: dict[int, ProcessFailure]) -> str:
    """What to say of the rank that brought the others down; the traceback of a defect goes to stderr.

    A process that was killed comes before those that then lost their connection to it.
    """
    rank, failure = min(failures.items(), key=lambda item: (item[1].exitcode > 0, item[1].timestamp))
    if failure.exitcode < 0:
        return f"rank {rank} died of {signal.Signals(-failure.exitcode).name}; the other ranks were stopped"
    if not isinstance(failure.message, dict):  # it left no exception
        return f"rank {rank} ended with exit status {failure.exitcode}; the other ranks were stopped"
    kind, _, text = failure.message["message"].partition(": ")
    if kind in ("UserError", "OptionError"):
        return text
    print(failure.message["extraInfo"]["py_callstack"], file=sys.stderr)
    return f"rank {rank} failed: {kind}: {text}; the other ranks were stopped"
