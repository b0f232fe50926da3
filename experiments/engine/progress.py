"""Show progress: a line on standard error for each job that starts or ends, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from txl_lightning.jobs import Jobs


class Progress:
    """Running jobs, and the time left at the present pace.

    Args:
        jobs: all jobs; jobs done before the first call are not reported.
        estimates: seconds by job, on the machine for which they were estimated.
        slots: jobs that really run at once.
    """

    def __init__(self, jobs: Jobs, estimates: Mapping[str, float], slots: int) -> None:
        self.jobs = jobs
        self.slots = slots
        self.estimates = estimates
        self.reported: set[str] = set()

    def show(self) -> None:
        """Report jobs that started or ended since the last call."""
        jobs = self.jobs
        for job, _ in jobs.running:
            self._report(f"{job.name}: started")
        for name, seconds in jobs.seconds.items():
            done = f"{name}: done in {clock(seconds)}"
            self._report(jobs.failed.get(name, done))

    def _report(self, line: str) -> None:
        if line in self.reported:
            return
        self.reported.add(line)
        n_done = len(self.jobs.done)
        n_left = len(self.jobs.running) + len(self.jobs.waiting)
        left = f"{n_left} to go, about {clock(self.seconds_left())}"
        text = f"{line} · {n_done} jobs done, {left}"
        print(text, file=sys.stderr, flush=True)

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the jobs that ended."""
        ended = self.jobs.seconds
        pace = 1.0
        if ended:
            estimated = sum(self.estimates[name] for name in ended)
            pace = sum(ended.values()) / estimated
        left = sum(self.estimates[job.name] for job in self.jobs.waiting)
        elapsed = 0.0
        for job, process in self.jobs.running:
            left += self.estimates[job.name]
            elapsed += time.monotonic() - process.started
        return max(0.0, pace * left - elapsed) / self.slots


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
