"""Ends of processes: with their parent, or at a signal. It imports the standard library only: it starts first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

POLL_SECONDS = 1.0
# SLURM sends SIGUSR1 before the time limit.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def handle_stop_signals(handler: Any) -> dict[int, Any]:
    """Handle the signals that stop a run, but for a SIGHUP that nohup ignores, and return all handlers before."""

    def handle(number: int, frame: Any) -> None:
        for stream in (1, 2) if number == signal.SIGHUP else ():
            try:
                os.write(stream, b"")
            except OSError:  # a closed terminal, where every message would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        handler(number, frame)

    before: dict[int, Any] = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        if (number, before[number]) != (signal.SIGHUP, signal.SIG_IGN):
            signal.signal(number, handle)
    return before


def end_with_parent(parent: int | None = None) -> None:
    """Kill this process once its parent is gone, so that no process outlives a killed run or multirun.

    A process that leads a process group takes the whole group with it.

    Args:
        parent: process id of the parent of a command; it may be gone already. None for a process of
            `multiprocessing` (spawn or forkserver), which watches the process that called `start`.
    """
    threading.Thread(target=_watch, args=(parent,), name="end_with_parent", daemon=True).start()


def _watch(parent: int | None) -> None:
    if parent is None:
        process = multiprocessing.parent_process()
        assert process is not None, "not a process of multiprocessing"
        process.join()
    else:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
