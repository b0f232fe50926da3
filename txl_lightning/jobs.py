"""Commands as processes: each in its process group, one after the other or side by side.

`start_job` runs one `txl` call. `Jobs` runs many, hands signals on and ends whole groups. Multiruns, the paper's
reproduction and ranks use this file; its names stay.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txl_lightning.errors import UserError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # SLURM sends SIGUSR1
POLL_SECONDS = 0.1
GRACE_SECONDS = 60.0  # for jobs to save after a signal
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
LOG = "log.txt"  # output of a job that does not write to the terminal


class Process(subprocess.Popen[bytes]):
    """A command that ends with this process, also if this one is killed (Linux).

    Args:
        words: the command.
        variables: environment variables in addition to this process's.
        last_signal: signal that the kernel sends when this process is gone.
        options: of `subprocess.Popen`.

    Attributes:
        started: when it started, by `time.monotonic`.
    """

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        last_signal: signal.Signals = signal.SIGTERM,
        **options: Any,
    ) -> None:
        parent = os.getpid()

        def end_with_parent() -> None:
            if LIBC is not None:
                LIBC.prctl(PR_SET_PDEATHSIG, last_signal)
                if os.getppid() != parent:  # it was killed a moment ago
                    os._exit(1)

        environment = dict(os.environ)
        environment.update(variables)
        self.started = time.monotonic()
        super().__init__(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
            **options,
        )

    @property
    def seconds(self) -> float:
        """Wall-clock time since the start."""
        return time.monotonic() - self.started

    def kill_group(self) -> None:
        """Kill it, if it still runs, and the processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def problem(status: int) -> str:
    """Return how a process ended, such as `was killed by SIGKILL`."""
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        return "was interrupted"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def start_job(
    words: Sequence[str], folder: Path, variables: Mapping[str, str], has_log: bool
) -> Process:
    """Start `txl WORDS hydra.run.dir=FOLDER` as a separate process.

    It leads a session: terminal signals do not reach it, and its children can be ended with it.

    Args:
        words: command and overrides; for a training that may have begun before with `resume=auto`.
        folder: where the job writes; it exists.
        variables: environment variables in addition to this process's.
        has_log: whether the output is appended to `log.txt` in the folder, or goes where this process's goes.
    """
    where = f"hydra.run.dir={quoted(str(folder.resolve()))}"
    command = [sys.executable, "-m", "txl_lightning.cli", *words, where]
    if not has_log:
        return Process(command, variables, start_new_session=True)
    with (folder / LOG).open("ab") as log:
        return Process(command, variables, start_new_session=True, stdout=log, stderr=log)


def quoted(text: str) -> str:
    """Return a text quoted and escaped for Hydra's grammar."""
    escaped = text.replace("${", r"\${").replace("'", r"\'")
    return f"'{escaped}'"


@contextmanager
def handled_signals(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle the signals that stop a run in the block, but for a SIGHUP that nohup ignores."""

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            _detach_from_closed_terminal()
        handler(number, frame)

    before = {}
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _detach_from_closed_terminal() -> None:
    """Send output nowhere if the terminal is gone: every message would be an error."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


@dataclass
class Jobs:
    """Jobs that run, jobs that wait and jobs that have ended.

    A job has a unique `name`, `needs` (jobs that must have succeeded before) and `alone` (whether no other job may run
    meanwhile).

    Args:
        waiting: jobs to run; those that run alone come last.
        start: starts a job; an OSError or UserError fails this job alone.
        end: called with each job that ended and its process; returns its error, or None for success.
        at_once: number of jobs that run at once.
        show: called after every change and ten times a second.

    Attributes:
        running: jobs that run now, with their processes.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: each ended job's time, by name.
        signals: signals that were received; the first one ends the jobs.
    """

    waiting: list[Any]
    start: Callable[[Any], Process]
    end: Callable[[Any, Process], str | None]
    at_once: int = 1
    show: Callable[[], object] = lambda: None
    running: list[tuple[Any, Process]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first signal of `STOP_SIGNALS` the running jobs are asked to end and no further job starts. Jobs that
        still run after `GRACE_SECONDS`, or at a second signal, are killed.

        Raises:
            KeyboardInterrupt: after a signal, its argument, once all processes have ended.
        """
        self.waiting.sort(key=lambda job: job.alone)
        # A list instead of an exception: an exception would be raised between any two steps.
        with handled_signals(lambda number, frame: self.signals.append(number)):
            try:
                while not self.signals and (self.running or self.waiting):
                    self._start_ready()
                    self._collect()
                for _, process in self.running:
                    process.terminate()  # it saves, and stops its children
                deadline = time.monotonic() + GRACE_SECONDS
                while self.running and len(self.signals) == 1 and time.monotonic() < deadline:
                    self._collect()
            finally:
                for _, process in self.running:
                    process.kill_group()
            while self.running:
                self._collect()
        if self.signals:
            raise KeyboardInterrupt(self.signals[0])

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            n_allowed = 1 if job.alone else self.at_once
            if len(self.running) >= n_allowed:
                return
            if not self.done.union(self.failed).issuperset(job.needs):
                continue
            self.waiting.remove(job)
            try:
                if not self.done.issuperset(job.needs):
                    needs = ", ".join(job.needs)
                    raise UserError(f"{job.name} was not run: it needs {needs}")
                self.running.append((job, self.start(job)))
            except (OSError, UserError) as error:  # the other jobs can still run
                self.failed[job.name] = str(error)

    def _collect(self) -> None:
        """Take ended jobs out of `running`; wait a moment if some still run."""
        for job, process in list(self.running):
            if process.poll() is None:
                continue
            process.kill_group()  # what it left behind
            self.running.remove((job, process))
            self.seconds[job.name] = process.seconds
            error = self.end(job, process)
            if error is None:
                self.done.add(job.name)
            elif not self.signals:
                self.failed[job.name] = error
        self.show()
        if self.running:
            time.sleep(POLL_SECONDS)
