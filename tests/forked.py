"""Commands in processes of their own that need not import torch again: forks of a server that has it imported."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

from txl_lightning.jobs import STOP_SIGNALS

ROOT = Path(__file__).parents[1]
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
        output = self.output.read_text()
        errors = self.errors.read_text()
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"{self.words} still ran after {timeout} s: {errors}")
        return CompletedProcess(self.words, self.process.exitcode, output, errors)


def start_module(directory: Path, module: str, *words: str, **variables: str) -> ForkedCommand:
    """Start `main()` of a module in `directory`, with words in `sys.argv` and additional environment variables."""
    output = directory / f".{time.monotonic_ns()}.out"
    errors = output.with_suffix(".err")
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    environment.update(variables)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    argv = [module, *words]
    process = context.Process(target=_run, args=(directory, argv, environment, output, errors))
    process.start()
    return ForkedCommand(argv, process, output, errors)


def _run(
    directory: Path, argv: list[str], environment: dict[str, str], output: Path, errors: Path
) -> None:
    for path, stream in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = argv
    sys.exit(importlib.import_module(argv[0]).main())
