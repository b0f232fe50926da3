"""Run jobs side by side, each in a process group of its own, end them with everything they started, show progress.

Importing torch, Lightning and Hydra takes as long as a short run. So a server imports them once and forks each job.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import psutil

from txl_lightning.distributed.parent_watch import end_with_parent
from txl_lightning.errors import UserError

SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.1
SECONDS_BETWEEN_LINES = 30.0  # of progress in a log file
SECONDS_BETWEEN_UPDATES = 0.25  # of progress on a terminal
CLEAR_LINE = "\r\033[K"
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Runnable(Protocol):
    """Something to run."""

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


@dataclass(frozen=True)
class Ended:
    """End of a job's process.

    Attributes:
        value: what the job's function returned; None without a result.
        status: exit status, negative for a signal; None for a process that could not start.
        seconds: wall-clock time.
        error: why it could not start.
    """

    value: Any
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


class JobProcess:
    """Process that calls `function(*arguments)` in a session of its own and ends with this process.

    Args:
        function: function of a module; its result must be picklable.
        arguments: its arguments.
        variables: environment variables beside those of this process.
        log: file that the output is appended to; None for the output of this process.
        modules: imported once, before the first job is forked.

    Attributes:
        pid: process id, also of its group.
        started: time of `time.monotonic`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        with handled_signals(signal.SIG_IGN):  # the server ignores signals to the group of this process, as jobs do
            forkserver.ensure_running()
        self._answer, answer = context.Pipe(duplex=False)
        environment = {**os.environ, **(variables or {})}
        self._process = context.Process(target=_run, args=(answer, environment, log, function, arguments))
        self._process.start()
        answer.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._value: Any = None
        self.started = time.monotonic()

    def poll(self) -> Ended | None:
        """Return the end of the process, once it and all processes of its group have ended; None before."""
        status = self._process.exitcode
        with suppress(EOFError, OSError):  # no result, or only a part of one
            if self._answer.poll():
                self._value = self._answer.recv()
        if status is None:
            return None
        self.end(signal.SIGKILL)  # processes that the job started and did not end
        return Ended(self._value, status, time.monotonic() - self.started)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to the first process of the job, which saves and stops its others."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, SIGKILL also to the processes that it started in groups of their own."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True) if number == signal.SIGKILL else ():
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _run(
    answer: Connection,
    environment: dict[str, str],
    log: Path | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for commands in the background
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output, stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # for `tail -f`
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:  # read when the server imported it
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    try:
        answer.send(function(*arguments))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def execute(words: Sequence[str]) -> None:
    """Replace the process of a job by a command."""
    os.execvp(words[0], list(words))


@contextmanager
def handled_signals(handler: Any) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP in the block; one that is ignored stays so: nohup relies on that.

    Args:
        handler: as of `signal.signal`.
    """
    before = {number: signal.getsignal(number) for number in TERMINAL_SIGNALS}
    handled = [number for number, handler_before in before.items() if handler_before is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


@dataclass
class Jobs(Generic[J]):
    """Jobs that run, those that wait and those that have ended.

    Args:
        waiting: jobs to run; those that run alone come last.
        start: starts a job in a slot, a number below `n_slots`; may raise OSError or UserError.
        end: called with each job that ended; returns its error, or None for success.
        n_slots: jobs that run at once.
        grace_seconds: time for jobs to save after a signal.
        first_signal: asks the first process of a job to save and end.
        limit: seconds after which the jobs are ended as by a signal; None without a limit.
        show: called after every change and ten times a second.
        fits: whether a job may start now; one that does not fit waits, and the call ends if nothing else can run.

    Attributes:
        running: jobs with their process and their slot.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: time of each job that ended, by name.
        stopped: whether a signal or the limit has ended the jobs, or none of those that wait fits.
        interrupted: names of the jobs that ran when they were stopped, and did not succeed.
    """

    waiting: list[J]
    start: Callable[[J, int], JobProcess]
    end: Callable[[J, Ended], str | None]
    n_slots: int = 1
    grace_seconds: float = 60.0
    first_signal: signal.Signals = signal.SIGINT
    limit: float | None = None
    show: Callable[[], object] = lambda: None
    fits: Callable[[J], bool] = lambda job: True
    running: list[tuple[J, JobProcess, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    interrupted: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first SIGINT (Ctrl-C), SIGTERM or SIGHUP the running jobs are asked to end and no further job starts.
        Jobs that still run after `grace_seconds`, or at a second signal, are terminated, then killed.

        Raises:
            KeyboardInterrupt: after a signal, its argument, once all processes have ended.
        """
        self.waiting.sort(key=lambda job: job.alone)
        began, stops, received = time.monotonic(), list[tuple[float, Callable[[JobProcess], None]]](), list[int]()
        # A list instead of an exception, which would be raised between any two steps.
        with handled_signals(lambda number, _: received.append(number)):
            try:
                while self.running or (self.waiting and not self.stopped):
                    if not self.stopped:
                        self._start_ready()
                        self.stopped = bool(self.waiting) and not self.running and self._nothing_fits()
                    self._collect()
                    now = time.monotonic()
                    if not self.stopped and (received or (self.limit is not None and now > began + self.limit)):
                        self.stopped, deadline = True, now + self.grace_seconds
                        stops = [
                            (now, lambda process: process.interrupt(self.first_signal)),
                            (deadline, lambda process: process.end(signal.SIGTERM)),
                            (deadline + SECONDS_TO_KILL, lambda process: process.end(signal.SIGKILL)),
                        ]
                    while stops and (now >= stops[0][0] or len(received) > 1):
                        _, stop = stops.pop(0)
                        for _, process, _ in self.running:
                            stop(process)
                    if not self.stopped:
                        self.show()
                    if self.running:
                        time.sleep(POLL_SECONDS)
            finally:
                for _, process, _ in self.running:
                    process.end(signal.SIGKILL)
        if received:
            raise KeyboardInterrupt(received[0])

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            if any(need in self.failed for need in job.needs):
                self.waiting.remove(job)
                self.failed[job.name] = f"{job.name} was not run: it needs {', '.join(job.needs)}"
                continue
            busy = {slot for _, _, slot in self.running}
            free = [slot for slot in range(self.n_slots) if slot not in busy]
            if not free or any(running.alone for running, _, _ in self.running) or (job.alone and busy):
                return
            if self._is_ready(job) and self.fits(job):
                self.waiting.remove(job)
                try:
                    self.running.append((job, self.start(job, free[0]), free[0]))
                except (OSError, UserError) as error:  # the other jobs can still run
                    self._ended(job, Ended(None, None, error=error))

    def _is_ready(self, job: J) -> bool:
        return all(need in self.done for need in job.needs)

    def _nothing_fits(self) -> bool:
        ready = [job for job in self.waiting if self._is_ready(job)]
        return bool(ready) and not any(map(self.fits, ready))

    def _collect(self) -> None:
        for entry in list(self.running):
            if (ended := entry[1].poll()) is not None:
                self.running.remove(entry)
                self._ended(entry[0], ended)

    def _ended(self, job: J, ended: Ended) -> None:
        self.seconds[job.name] = ended.seconds
        if (error := self.end(job, ended)) is None:
            self.done.add(job.name)
        elif self.stopped:
            self.interrupted.add(job.name)
        else:
            self.failed[job.name] = error


@dataclass
class Progress(Generic[J]):
    """Line on standard error, updated on a terminal; else a line for each ended job and one every 30 seconds.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job that has not run, on the machine that they were estimated for.
        slots: jobs that really run at once.
        describe: further words on a running job.
        share: share of a job that is done, and its seconds; None if that is not known. A waiting job has one if an
            earlier call has begun it.
    """

    jobs: Jobs[J]
    estimate: Callable[[J], float]
    slots: int = 1
    describe: Callable[[J], str] = lambda job: ""
    share: Callable[[J], tuple[float, float] | None] = lambda job: None
    _estimates: dict[str, float] = field(default_factory=dict)
    _shares: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _last_update: float = -SECONDS_BETWEEN_LINES

    def __post_init__(self) -> None:
        self._estimates = {job.name: self.estimate(job) for job in self.jobs.waiting}
        begun = {job.name: self.share(job) for job in self.jobs.waiting}
        self._shares = {name: found[0] for name, found in begun.items() if found is not None}
        self._on_terminal = sys.stderr.isatty()

    def show(self) -> None:
        """Report jobs that ended since the last call and, when it is time, the running ones."""
        for name, seconds in self.jobs.seconds.items():
            if name not in self._reported:
                self._reported.add(name)
                self._print_line(self.jobs.failed.get(name) or f"{name}: done in {seconds:.0f} s")
        now, pause = time.monotonic(), SECONDS_BETWEEN_UPDATES if self._on_terminal else SECONDS_BETWEEN_LINES
        if self.jobs.running and now - self._last_update >= pause:
            self._last_update = now
            if self._on_terminal:
                width = shutil.get_terminal_size().columns - 1
                print(CLEAR_LINE + self.status()[:width], end="", file=sys.stderr, flush=True)
            else:
                print(self.status(), file=sys.stderr, flush=True)

    def status(self) -> str:
        """Return one line: jobs done, time left, the running jobs."""
        done = f"{len(self.jobs.done)} of {self.n_jobs} jobs done, about {clock(self.seconds_left())} left"
        return " · ".join([done, *self.running()])

    @property
    def n_jobs(self) -> int:
        """Number of all jobs, those that were done before included."""
        jobs = self.jobs
        return sum(map(len, (jobs.done, jobs.failed, jobs.interrupted, jobs.running, jobs.waiting)))

    def running(self) -> list[str]:
        """Return name and state of each running job."""
        return [f"{job.name} {self.describe(job)}".strip() for job, _, _ in self.jobs.running]

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the jobs so far."""
        pace, waiting = self.pace(), self.jobs.waiting
        parallel = sum(self.left(job, pace) for job in waiting if not job.alone)
        parallel += sum(
            max(0.0, self.left(job, pace) - (time.monotonic() - process.started))
            for job, process, _ in self.jobs.running
        )
        interrupted = sum(self._left(name, pace) for name in self.jobs.interrupted)
        return (parallel + interrupted) / self.slots + sum(self.left(job, pace) for job in waiting if job.alone)

    def left(self, job: J, pace: float | None = None) -> float:
        """Return the estimated seconds of a job from its start in this call, at the pace of the jobs so far."""
        return self._left(job.name, self.pace() if pace is None else pace)

    def _left(self, name: str, pace: float) -> float:
        return self._estimates[name] * (1 - self._shares.get(name, 0.0)) * pace

    def pace(self) -> float:
        """Return seconds taken / estimated of the jobs so far, the running ones included; 1 before the first."""
        ended = self.jobs.done & self.jobs.seconds.keys()
        taken, estimated = sum(self.jobs.seconds[n] for n in ended), sum(self._left(n, 1.0) for n in ended)
        for job, _, _ in self.jobs.running:
            if (so_far := self.share(job)) is not None:
                taken, estimated = taken + so_far[1], estimated + so_far[0] * self._estimates[job.name]
        return taken / estimated if taken and estimated else 1.0

    def close(self) -> None:
        """Clear the status line of a terminal."""
        if self._on_terminal:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def _print_line(self, text: str) -> None:
        print((CLEAR_LINE if self._on_terminal else "") + text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    for longest, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < longest:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
