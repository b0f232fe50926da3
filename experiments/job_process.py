"""A job's process: the command `txl`, forked from a process that has its libraries imported already.

Starting Python and importing torch, Lightning and Hydra takes as long as a short run; a fork takes a blink.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

IMPORTED = ["txl_lightning.cli", "txl_lightning.training.run", "txl_lightning.evaluation.command", "wandb"]


def start(words: list[str], log: Path, environment: dict[str, str]) -> ForkServerProcess:
    """`txl` with some words, its output in a file, in a process group of its own that ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_run, args=(words, str(log), environment))
    process.start()
    return process


def _run(words: list[str], log: str, environment: dict[str, str]) -> None:
    from txl_lightning.cli import main
    from txl_lightning.training.processes import end_with_parent

    parent = os.getppid()
    os.setpgid(0, 0)  # Ctrl-C is for the runner, who passes one signal on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    end_with_parent(parent)
    lock = os.open(f"{log}.lock", os.O_WRONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a job of a runner that was killed ends within a second of it
    sys.argv = ["txl", *words]
    main()
