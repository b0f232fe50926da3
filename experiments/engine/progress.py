"""Progress of a reproduction on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.engine.jobs import Job
from txl_lightning.jobs import Jobs


@dataclass
class Progress:
    """Line on standard error for each job that ends: how, the jobs done, the time left, the running jobs.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job on the machine that they were estimated for.
        slots: jobs that really run at once.
    """

    jobs: Jobs[Job]
    estimate: Callable[[Job], float]
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
        n_jobs = sum(map(len, (jobs.done, jobs.failed, jobs.running, jobs.waiting)))
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
