"""Jobs side by side: every job is a command in a process group of its own.

`Jobs` runs them after the jobs that they need, passes signals on and ends whole groups. Multiruns and the reproduction
of the paper use it.
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
from typing import Generic, Protocol, TypeVar

from txl_lightning.errors import UserError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # SLURM sends SIGUSR1
POLL_SECONDS = 0.1
SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Ended:
    """End of a process.

    Attributes:
        status: exit status, negative for a signal; None for a process that could not start.
        seconds: wall-clock time.
        error: why it could not start.
    """

    status: int | None
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def problem(self) -> str:
        """How the process ended, such as `was killed by SIGKILL`."""
        if self.status is None:
            return f"could not start: {self.error}"
        if self.status in (-signal.SIGINT, 128 + signal.SIGINT):
            return "was interrupted"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit status {self.status}"

    @property
    def is_stopped(self) -> bool:
        """Whether a signal ended the process: with the signal itself, or with 128 + its number after saving."""
        return self.status is not None and (self.status < 0 or self.status > 128)


class Process:
    """A command in a session of its own: signals of the terminal do not reach it, its children end with it.

    Args:
        words: the command.
        variables: environment variables in addition to those of this process.
        log: file to which the output is appended; None for the output of this process.

    Attributes:
        started: time of `time.monotonic`.
    """

    def __init__(self, words: Sequence[str], variables: Mapping[str, str], log: Path | None) -> None:
        environment = dict(os.environ)
        environment.update(variables)
        output = None
        if log is not None:
            output = log.open("ab")
        try:
            self._process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        finally:
            if output is not None:
                output.close()
        self.pid = self._process.pid
        self.started = time.monotonic()

    def poll(self) -> Ended | None:
        """Return the end of the process; None before. Processes that it left behind are killed."""
        status = self._process.poll()
        if status is None:
            return None
        self.end(signal.SIGKILL)
        return Ended(status, time.monotonic() - self.started)

    def interrupt(self, number: int) -> None:
        """Send a signal to the process alone, which saves and stops its children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: int) -> None:
        """Send a signal to the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _end_with_parent() -> None:
    """Let the kernel stop this process with SIGTERM when its parent is gone, so that it can save."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def remembered_signals() -> Iterator[list[int]]:
    """Collect the signals that stop a run in a list, but for those that are ignored, as by nohup."""
    received: list[int] = []

    def remember(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            _detach_from_closed_terminal()
        received.append(number)

    before = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, remember)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _detach_from_closed_terminal() -> None:
    """Send output nowhere if the terminal is gone: every message would be an error."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


class Runnable(Protocol):
    """A job."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the jobs that must have succeeded before."""

    @property
    def alone(self) -> bool:
        """Whether no other job may run meanwhile."""


J = TypeVar("J", bound=Runnable)


@dataclass
class Running(Generic[J]):
    """A job that runs, in a slot."""

    job: J
    process: Process
    slot: int


@dataclass
class Jobs(Generic[J]):
    """Jobs that run, jobs that wait and jobs that have ended.

    Args:
        waiting: jobs to run; those that run alone come last.
        start: starts a job in a slot, a number below `n_slots`; may raise OSError or UserError.
        end: called with each job that ended; returns its error, or None for success.
        n_slots: jobs that run at once.
        grace_seconds: time for jobs to save after a signal.
        first_signal: asks the first process of a job to save and end.
        show: called after every change and ten times a second.

    Attributes:
        running: jobs that run now.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: time of each job that ended, by name.
        stopped: whether a signal has ended the jobs.
    """

    waiting: list[J]
    start: Callable[[J, int], Process]
    end: Callable[[J, Ended], str | None]
    n_slots: int = 1
    grace_seconds: float = 60.0
    first_signal: signal.Signals = signal.SIGINT
    show: Callable[[], object] = lambda: None
    running: list[Running[J]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first signal of `STOP_SIGNALS` the running jobs are asked to end and no further job starts. Jobs that
        still run after `grace_seconds`, or at a second signal, are terminated, then killed.

        Raises:
            KeyboardInterrupt: after a signal, its argument, once all processes have ended.
        """
        self.waiting.sort(key=lambda job: job.alone)
        # A list instead of an exception, which would be raised between any two steps.
        with remembered_signals() as received:
            try:
                while not received and (self.running or self.waiting):
                    self._start_ready()
                    self._collect()
                    self.show()
                    self._pause()
                if received:
                    self._stop(received)
            finally:
                for running in self.running:
                    running.process.end(signal.SIGKILL)
        if received:
            raise KeyboardInterrupt(received[0])

    def _stop(self, received: list[int]) -> None:
        """End the running jobs: a request, then SIGTERM, then SIGKILL."""
        self.stopped = True
        for running in self.running:
            running.process.interrupt(self.first_signal)
        self._wait_until(time.monotonic() + self.grace_seconds, received)
        for running in self.running:
            running.process.end(signal.SIGTERM)
        self._wait_until(time.monotonic() + SECONDS_TO_KILL, [])
        for running in self.running:
            running.process.end(signal.SIGKILL)
        self._wait_until(float("inf"), [])

    def _wait_until(self, deadline: float, received: list[int]) -> None:
        """Wait for the running jobs, until a deadline or a second signal."""
        while self.running and time.monotonic() < deadline and len(received) < 2:
            self._collect()
            self._pause()

    def _pause(self) -> None:
        if self.running:
            time.sleep(POLL_SECONDS)

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            if any(need in self.failed for need in job.needs):
                self.waiting.remove(job)
                self.failed[job.name] = f"{job.name} was not run: it needs {', '.join(job.needs)}"
                continue
            busy = {running.slot for running in self.running}
            free = [slot for slot in range(self.n_slots) if slot not in busy]
            if not free or (job.alone and busy):
                return
            if any(running.job.alone for running in self.running):
                return
            if all(need in self.done for need in job.needs):
                self.waiting.remove(job)
                self._start(job, free[0])

    def _start(self, job: J, slot: int) -> None:
        try:
            process = self.start(job, slot)
        except (OSError, UserError) as error:  # the other jobs can still run
            self._ended(job, Ended(None, error=error))
        else:
            self.running.append(Running(job, process, slot))

    def _collect(self) -> None:
        for running in list(self.running):
            ended = running.process.poll()
            if ended is not None:
                self.running.remove(running)
                self._ended(running.job, ended)

    def _ended(self, job: J, ended: Ended) -> None:
        self.seconds[job.name] = ended.seconds
        error = self.end(job, ended)
        if error is None:
            self.done.add(job.name)
        elif not self.stopped:
            self.failed[job.name] = error
