"""Progress of a reproduction: a line on standard error for each job that starts or ends, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from experiments.engine.jobs import Job
from txl_lightning.jobs import Jobs


class Progress:
    """Jobs that run, and the time left at the pace of those that ended.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job on the machine that they were estimated for.
        slots: jobs that really run at once.
    """

    def __init__(self, jobs: Jobs, estimate: Callable[[Job], float], slots: int) -> None:
        self.jobs = jobs
        self.slots = slots
        self.estimates = {job.name: estimate(job) for job in jobs.waiting}
        self.reported: set[str] = set()

    def show(self) -> None:
        """Report jobs that started or ended since the last call."""
        for running in self.jobs.running:
            self._report(f"{running.job.name}: started")
        for name, seconds in self.jobs.seconds.items():
            self._report(self.jobs.failed.get(name, f"{name}: done in {clock(seconds)}"))

    def _report(self, line: str) -> None:
        if line not in self.reported:
            self.reported.add(line)
            print(f"{line} · {self.status()}", file=sys.stderr, flush=True)

    def status(self) -> str:
        """Return how many jobs are done, and the time left of all."""
        jobs = self.jobs
        n_done = len(jobs.done)
        n_jobs = n_done + len(jobs.failed) + len(jobs.running) + len(jobs.waiting)
        return f"{n_done} of {n_jobs} jobs done, about {clock(self.seconds_left())} left"

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done."""
        pace = 1.0
        estimated = sum(self.estimates[name] for name in self.jobs.seconds)
        if estimated:
            pace = sum(self.jobs.seconds.values()) / estimated
        left = sum(self.estimates[job.name] for job in self.jobs.waiting)
        elapsed = 0.0
        for running in self.jobs.running:
            left += self.estimates[running.job.name]
            elapsed += time.monotonic() - running.process.started
        return max(0.0, pace * left - elapsed) / self.slots

    def as_json(self) -> dict[str, Any]:
        """Return what `results.json` has under `jobs` while they run."""
        return {
            "time": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "seconds_left": round(self.seconds_left(), 1),
            "running": [running.job.name for running in self.jobs.running],
        }


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
