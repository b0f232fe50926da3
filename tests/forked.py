"""Commands in processes of their own that need not import torch again: forks of a server that has it imported."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

from txl_lightning.jobs import STOP_SIGNALS

PRELOADED = ["tests.training.recorded_run", "txl_lightning.cli", "wandb"]


@dataclass
class ForkedCommand:
    """A running command: `main()` of a module, with WORDS in `sys.argv`, in a fork."""

    words: list[str]
    process: ForkServerProcess
    output: Path
    errors: Path

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        """Return the exit status; None while the command runs."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        os.kill(self.pid, number)

    def succeed(self) -> CompletedProcess[str]:
        """Wait for the end, which must be one with status 0."""
        done = self.finish()
        assert done.returncode == 0, done.stderr
        return done

    def finish(self, timeout: float = 300) -> CompletedProcess[str]:
        """Wait for the end and return all output.

        Raises:
            TimeoutError: the command still runs; it is killed.
        """
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(
                f"{self.words} still ran after {timeout} s: {self.errors.read_text()}"
            )
        return CompletedProcess(
            self.words, self.process.exitcode, self.output.read_text(), self.errors.read_text()
        )


def start_module(directory: Path, module: str, *words: str, **variables: str) -> ForkedCommand:
    """Start `main()` of a module in `directory`, with words in `sys.argv` and additional environment variables."""
    logs = [directory / f".{time.monotonic_ns()}.{name}" for name in ("out", "err")]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        **variables,
    }
    arguments = (str(directory), module, list(words), environment, *map(str, logs))
    process = context.Process(target=_run, args=arguments)
    process.start()
    return ForkedCommand([module, *words], process, *logs)


def _run(
    directory: str,
    module: str,
    words: list[str],
    environment: Mapping[str, str],
    output: str,
    errors: str,
) -> None:
    for path, stream in ((output, sys.stdout), (errors, sys.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = [module, *words]
    sys.exit(importlib.import_module(module).main())
