"""Main program of a job's process. The launcher runs this file by its path, before `sys.path` is set."""

from __future__ import annotations

import os
import pickle
import signal
import sys


def main() -> None:
    """`_job_main.py PARENT RESULT …`: process id of the launcher, and an open file for the pickled result.

    Standard input holds two pickles: the launcher's `sys.path`, and the job.
    """
    parent, result = int(sys.argv[1]), int(sys.argv[2])
    # A shell that runs the multirun in the background ignores this signal, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.set_inheritable(result, False)
    try:
        with os.fdopen(os.dup(0), "rb") as stream:
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            sys.path[:] = pickle.load(stream)
            from txl_lightning.distributed.parent_watch import end_with_parent

            end_with_parent(parent)
            from hydra.core.plugins import Plugins

            Plugins.instance()  # its scan replaces classes: it must precede whatever refers to them
            job = pickle.load(stream)
        done = pickle.dumps(job.run())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    with os.fdopen(result, "wb") as file:
        file.write(done)


if __name__ == "__main__":
    main()
