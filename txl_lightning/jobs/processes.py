"""Run jobs side by side, each in a process of its own, end them with everything they started, show progress."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from txl_lightning.distributed.processes import POLL_SECONDS, Ended, JobProcess, handled_signals
from txl_lightning.errors import UserError

SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL


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

    Attributes:
        running: jobs with their process and their slot.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: time of each job that ended, by name.
        stopped: whether a signal or the limit has ended the jobs.
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
    running: list[tuple[J, JobProcess, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    interrupted: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first signal of `STOP_SIGNALS` the running jobs are asked to end and no further job starts.
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
            if all(need in self.done for need in job.needs):
                self.waiting.remove(job)
                try:
                    self.running.append((job, self.start(job, free[0]), free[0]))
                except (OSError, UserError) as error:  # the other jobs can still run
                    self._ended(job, Ended(None, None, error=error))

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
    """Line on standard error for each job that ends: how, the jobs done, the time left, the running jobs.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job on the machine that they were estimated for.
        slots: jobs that really run at once.
    """

    jobs: Jobs[J]
    estimate: Callable[[J], float]
    slots: int = 1
    _estimates: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._estimates = {job.name: self.estimate(job) for job in self.jobs.waiting}

    def show(self) -> None:
        """Report jobs that ended since the last call."""
        for name in [name for name in self.jobs.seconds if name not in self._reported]:
            self._reported.add(name)
            text = self.jobs.failed.get(name) or f"{name}: done in {self.jobs.seconds[name]:.0f} s"
            print(f"{text} · {self.status()}", file=sys.stderr, flush=True)

    def status(self) -> str:
        """Return one line: jobs done, time left, the running jobs."""
        jobs = self.jobs
        n_jobs = sum(map(len, (jobs.done, jobs.failed, jobs.interrupted, jobs.running, jobs.waiting)))
        done = f"{len(jobs.done)} of {n_jobs} jobs done, about {clock(self.seconds_left())} left"
        return " · ".join([done, *(job.name for job, _, _ in jobs.running)])

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the jobs so far."""
        ended = self.jobs.done & self.jobs.seconds.keys()
        estimated = sum(self._estimates[name] for name in ended)
        pace = sum(self.jobs.seconds[name] for name in ended) / estimated if estimated else 1.0
        left = {name: seconds * pace for name, seconds in self._estimates.items()}
        now = time.monotonic()
        parallel = [left[job.name] for job in self.jobs.waiting if not job.alone]
        parallel += [max(0.0, left[job.name] - (now - run.started)) for job, run, _ in self.jobs.running]
        return sum(parallel) / self.slots + sum(left[job.name] for job in self.jobs.waiting if job.alone)


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    for longest, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < longest:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
