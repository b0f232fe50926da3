"""The first steps of a job's process: the launcher starts this file by its path.

Only the standard library is imported here, since `sys.path` becomes the launcher's on the way.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time


def end_with_parent(parent: int, every: float = 1.0) -> None:
    """Kill this process's group once `parent` is its parent no more: no job outlives a killed multirun.

    Args:
        parent: process id, told by the parent itself, which may be gone already.
        every: seconds between two looks.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def main() -> None:
    """`_start.py PARENT RESULT …`: the launcher's process id, and the open file that takes the job's result."""
    parent, result = int(sys.argv[1]), int(sys.argv[2])
    end_with_parent(parent)
    # A shell that put the multirun into the background had this signal ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.set_inheritable(result, False)
    try:
        with os.fdopen(os.dup(0), "rb") as stream:
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            sys.path[:] = pickle.load(stream)
            from hydra.core.plugins import Plugins

            Plugins.instance()  # its scan replaces classes, so it comes before anything refers to them
            job = pickle.load(stream)
        done = pickle.dumps(job.run())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    with os.fdopen(result, "wb") as file:
        file.write(done)


if __name__ == "__main__":
    main()
