"""Watch on the parent process. Imports the standard library only: a process starts it before anything else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

POLL_SECONDS = 1.0


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
