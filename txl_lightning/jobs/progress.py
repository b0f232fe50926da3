"""Progress of jobs on standard error: those that ended, those that run, the time left."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from txl_lightning.jobs.processes import J, Jobs

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 0.25
CLEAR_LINE = "\r\033[K"


@dataclass
class Progress(Generic[J]):
    """Line on standard error, updated on a terminal; else a line for each ended job and one every 30 seconds.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job that has not run, on the machine that they were estimated for.
        slots: jobs that really run at once.
        describe: further words on a running job.
        share: share of a running job that is done, and its seconds; None if that is not known yet.
    """

    jobs: Jobs[J]
    estimate: Callable[[J], float]
    slots: int = 1
    describe: Callable[[J], str] = lambda job: ""
    share: Callable[[J], tuple[float, float] | None] = lambda job: None
    _estimates: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _last_update: float = -SECONDS_BETWEEN_LINES

    def __post_init__(self) -> None:
        self._estimates = {job.name: self.estimate(job) for job in self.jobs.waiting}
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
        jobs = self.jobs
        n_all = len(jobs.done) + len(jobs.failed) + len(jobs.running) + len(jobs.waiting)
        done = f"{len(jobs.done)} of {n_all} jobs done, about {clock(self.seconds_left())} left"
        return " · ".join([done, *(f"{job.name} {self.describe(job)}".strip() for job, _, _ in jobs.running)])

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the jobs so far."""
        pace, now, waiting = self.pace(), time.monotonic(), self.jobs.waiting
        parallel = sum(self._estimates[job.name] * pace for job in waiting if not job.alone)
        for job, process, _ in self.jobs.running:
            parallel += max(0.0, self._estimates[job.name] * pace - (now - process.started))
        return parallel / self.slots + sum(self._estimates[job.name] * pace for job in waiting if job.alone)

    def pace(self) -> float:
        """Return seconds taken / estimated of the jobs so far, the running ones included; 1 before the first."""
        ended = self.jobs.done & self.jobs.seconds.keys()
        taken, estimated = sum(self.jobs.seconds[n] for n in ended), sum(self._estimates[n] for n in ended)
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
