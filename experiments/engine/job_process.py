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

from txl_lightning.distributed.parent_watch import end_with_parent

IMPORTED = ["txl_lightning.cli", "txl_lightning.training.run", "txl_lightning.evaluation.evaluate.command", "wandb"]


def start(words: list[str], log: Path, lock: Path, environment: dict[str, str]) -> ForkServerProcess:
    """`txl` with some words, its output in a file, in a process group of its own that ends with this process.

    `lock` is held as long as it runs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_run, args=(words, str(log), str(lock), environment))
    process.start()
    return process


def _run(words: list[str], log: str, lock: str, environment: dict[str, str]) -> None:
    from txl_lightning.cli import main

    os.setpgid(0, 0)  # Ctrl-C is for the runner, who passes one signal on
    end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    fcntl.flock(os.open(lock, os.O_WRONLY | os.O_CREAT, 0o644), fcntl.LOCK_EX)
    sys.argv = ["txl", *words]
    main()
