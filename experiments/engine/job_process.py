"""Processes of jobs: the command `txl`, forked from a process that has imported its libraries, or after a prefix.

Importing torch, Lightning and Hydra takes as long as a short run; a fork takes milliseconds.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Protocol

from txl_lightning.distributed.parent_watch import end_with_parent

PRELOADED = [
    "txl_lightning.command_line.hydra_app",
    "txl_lightning.training.run",
    "txl_lightning.evaluation.perplexity.command",
    "wandb",
]


class JobHandle(Protocol):
    """Running process of a job: a process of `multiprocessing`, or `PrefixedProcess`."""

    @property
    def exitcode(self) -> int | None:
        """Exit status; None while the process runs."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class PrefixedProcess:
    """Job started through a prefix such as `srun --nodes 2`.

    Args:
        prefix: words in front of `txl`.
        words: command line of `txl`.
        log: file that the output is appended to.
        lock: open file whose lock the process inherits and holds until it ends, even if the runner is gone.
        environment: variables set beside those of this process.
    """

    def __init__(
        self, prefix: tuple[str, ...], words: list[str], log: Path, lock: IO[str], environment: dict[str, str]
    ) -> None:
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "txl_lightning.cli", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | environment,
                pass_fds=(lock.fileno(),),
            )
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def exitcode(self) -> int | None:
        """Exit status; None while the process runs."""
        return self._process.poll()


def start(words: list[str], log: Path, lock: Path, environment: dict[str, str]) -> ForkServerProcess:
    """Start `txl` in a process group of its own that ends with this process.

    Args:
        words: command line of `txl`.
        log: file that the output is appended to.
        lock: file that the process locks until it ends.
        environment: variables set beside those of this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(words, str(log), str(lock), environment))
    process.start()
    return process


def _run(words: list[str], log: str, lock: str, environment: dict[str, str]) -> None:
    from txl_lightning.cli import main

    os.setpgid(0, 0)  # Ctrl-C reaches the runner alone, which sends each job one signal
    end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    fcntl.flock(os.open(lock, os.O_WRONLY | os.O_CREAT, 0o644), fcntl.LOCK_EX)
    sys.argv = ["txl", *words]
    main()
