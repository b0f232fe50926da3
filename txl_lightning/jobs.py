"""Commands as processes: each in a process group of its own, one after the other or side by side.

`start_job` runs one call of `txl`. `Jobs` runs many, hands signals on and ends whole groups. Multiruns, the
reproduction of the paper and the ranks of a run use this file; its names stay.
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

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # SLURM sends SIGUSR1
POLL_SECONDS = 0.1
SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Ended:
    """End of a process.

    Attributes:
        status: exit status, negative for a signal.
        seconds: wall-clock time.
    """

    status: int
    seconds: float = 0.0

    @property
    def problem(self) -> str:
        """How the process ended, such as `was killed by SIGKILL`."""
        if self.status in (-signal.SIGINT, 128 + signal.SIGINT):
            return "was interrupted"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit status {self.status}"

    @property
    def is_stopped(self) -> bool:
        """Whether a signal ended the process: with the signal itself, or with 128 + its number after saving."""
        return self.status < 0 or self.status > 128


class Process:
    """A command in a session of its own: signals of the terminal do not reach it, its children end with it.

    Args:
        words: the command.
        variables: environment variables in addition to this process's.
        log: file to which the output is appended; None for the output of this process.
        is_leader: whether it has a session of its own, or belongs to the group of this process.
        last_signal: signal that the kernel sends when this process is gone (Linux).

    Attributes:
        started: time of `time.monotonic`.
    """

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        log: Path | None = None,
        is_leader: bool = True,
        last_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        def end_with_parent() -> None:
            if LIBC is not None:
                LIBC.prctl(PR_SET_PDEATHSIG, last_signal)

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
                start_new_session=is_leader,
                preexec_fn=end_with_parent,
            )
        finally:
            if output is not None:
                output.close()
        self.pid = self._process.pid
        self.is_leader = is_leader
        self.started = time.monotonic()

    def poll(self) -> Ended | None:
        """Return the end of the process; None before. Processes that it left behind are killed."""
        status = self._process.poll()
        if status is None:
            return None
        if self.is_leader:
            self.end(signal.SIGKILL)
        return Ended(status, time.monotonic() - self.started)

    def interrupt(self, number: int) -> None:
        """Send a signal to the process alone, which saves and stops its children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: int) -> None:
        """Send a signal to the whole group of a leader, else to the process."""
        if not self.is_leader:
            self._process.send_signal(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start_job(
    words: Sequence[str], variables: Mapping[str, str], log: Path | None = None
) -> Process:
    """Start `txl WORDS` as a process of its own.

    Whoever runs jobs decides about their folders: `words` end with `hydra.run.dir=FOLDER`, and for a training that may
    have begun there with `resume=auto`.

    Args:
        words: command and overrides.
        variables: environment variables in addition to this process's.
        log: file to which the output is appended; None for the output of this process.
    """
    return Process([sys.executable, "-m", "txl_lightning.cli", *words], variables, log)


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
class Running:
    """A job that runs."""

    job: Any
    process: Process


@dataclass
class Jobs:
    """Jobs that run, jobs that wait and jobs that have ended.

    A job has a unique `name`, `needs` (names of the jobs that must have succeeded before) and `alone` (whether no
    other job may run meanwhile).

    Args:
        waiting: jobs to run; those that run alone come last.
        start: starts a job; an error of it ends all jobs.
        end: called with each job that ended; returns its error, or None for success.
        at_once: number of jobs that run at once.
        grace_seconds: time for jobs to save after a signal.
        show: called after every change and ten times a second.

    Attributes:
        running: jobs that run now.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: time of each job that ended, by name.
        signals: signals that were received; the first one ends the jobs.
    """

    waiting: list[Any]
    start: Callable[[Any], Process]
    end: Callable[[Any, Ended], str | None]
    at_once: int = 1
    grace_seconds: float = 60.0
    show: Callable[[], object] = lambda: None
    running: list[Running] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first signal of `STOP_SIGNALS` the running jobs are asked to end and no further job starts. Jobs that
        still run after `grace_seconds`, or at a second signal, are terminated, then killed.

        Raises:
            KeyboardInterrupt: after a signal, its argument, once all processes have ended.
        """
        self.waiting.sort(key=lambda job: job.alone)
        # A list instead of an exception, which would be raised between any two steps.
        with handled_signals(lambda number, frame: self.signals.append(number)):
            try:
                while not self.signals and (self.running or self.waiting):
                    self._start_ready()
                    self._collect()
                if self.signals:
                    self._stop()
            finally:
                self._send(signal.SIGKILL)
        if self.signals:
            raise KeyboardInterrupt(self.signals[0])

    def _stop(self) -> None:
        """End the running jobs: a request, then SIGTERM, then SIGKILL."""
        for running in self.running:
            running.process.interrupt(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while self.running and time.monotonic() < deadline and len(self.signals) < 2:
            self._collect()
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_KILL
        while self.running and time.monotonic() < deadline:
            self._collect()
        self._send(signal.SIGKILL)
        while self.running:
            self._collect()

    def _send(self, number: int) -> None:
        for running in self.running:
            running.process.end(number)

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            if any(need in self.failed for need in job.needs):
                self.waiting.remove(job)
                self.failed[job.name] = f"{job.name} was not run: it needs {', '.join(job.needs)}"
                continue
            is_alone = any(running.job.alone for running in self.running)
            n_running = len(self.running)
            if is_alone or n_running == self.at_once or (job.alone and n_running):
                return
            if all(need in self.done for need in job.needs):
                self.waiting.remove(job)
                self.running.append(Running(job, self.start(job)))

    def _collect(self) -> None:
        """Take the jobs that ended out of `running`; wait a moment if others still run."""
        for running in list(self.running):
            ended = running.process.poll()
            if ended is None:
                continue
            self.running.remove(running)
            name = running.job.name
            self.seconds[name] = ended.seconds
            error = self.end(running.job, ended)
            if error is None:
                self.done.add(name)
            elif not self.signals:
                self.failed[name] = error
        self.show()
        if self.running:
            time.sleep(POLL_SECONDS)
