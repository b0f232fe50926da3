"""Show progress: a line on standard error for each job that starts or ends, and the time left."""

from __future__ import annotations

import sys


class Progress:
    """Jobs that run or wait, and the time left at the pace of the jobs that ended.

    Args:
        estimates: seconds of each job to run by name, on the machine for which they were estimated.
        slots: jobs that really run at once.
        n_done: jobs that are done already.
    """

    def __init__(self, estimates: dict[str, float], slots: int, n_done: int) -> None:
        self.estimates = estimates
        self.slots = slots
        self.n_done = n_done
        self.estimated = 0.0
        self.needed = 0.0

    def started(self, name: str) -> None:
        """Report that a job has started."""
        self._report(f"{name}: started")

    def ended(self, name: str, seconds: float, line: str | None) -> None:
        """Report that a job has ended after some seconds; the line is the error of a failed one."""
        self.estimated += self.estimates.pop(name)
        self.needed += seconds
        if line is None:
            self.n_done += 1
            line = f"{name}: done in {clock(seconds)}"
        self._report(line)

    def _report(self, line: str) -> None:
        left = f"{len(self.estimates)} to go, about {clock(self.seconds_left())}"
        print(f"{line} · {self.n_done} jobs done, {left}", file=sys.stderr, flush=True)

    def seconds_left(self) -> float:
        """Return the estimated seconds for the jobs that run or wait."""
        pace = 1.0
        if self.estimated:
            pace = self.needed / self.estimated
        return pace * sum(self.estimates.values()) / self.slots


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
