"""Progress of a reproduction: lines on standard error, and the part of the report that shows running jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from experiments.engine.jobs import Job
from txl_lightning.jobs import Jobs, Process


@dataclass
class Progress:
    """Line on standard error for each job that starts, advances or ends: its step, its time left, and that of all.

    Args:
        jobs: the jobs; those that are done before the first call are not reported.
        estimate: seconds of a job on the machine that they were estimated for.
        slots: jobs that really run at once.
        steps: steps that a training has done, and its steps in all; (0, 0) for other jobs.
    """

    jobs: Jobs
    estimate: Callable[[Job], float]
    slots: int = 1
    steps: Callable[[Job], tuple[int, int]] = lambda job: (0, 0)
    _estimates: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _seen: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # steps of running jobs, and when seen

    def __post_init__(self) -> None:
        for job in self.jobs.waiting:
            done, steps = self.steps(job)
            self._estimates[job.name] = self.estimate(job) * (1 - done / steps if steps else 1.0)

    def show(self) -> None:
        """Report jobs that ended, started or advanced since the last call."""
        for name in [name for name in self.jobs.seconds if name not in self._reported]:
            self._reported.add(name)
            text = self.jobs.failed.get(name) or f"{name}: done in {clock(self.jobs.seconds[name])}"
            print(f"{text} · {self.status()}", file=sys.stderr, flush=True)
        for running in self.jobs.running:
            job, process = running.job, running.process
            step, seen = self.steps(job)[0], self._seen.setdefault(job.name, [])
            if not seen or step > seen[-1][0]:
                seen.append((step, time.monotonic() - process.started))
                print(f"{job.name}: {self.state(job, process)}", file=sys.stderr, flush=True)

    def status(self) -> str:
        """Return how many jobs are done, and the time left of all."""
        jobs = self.jobs
        n_jobs = sum(map(len, (jobs.done, jobs.failed, jobs.running, jobs.waiting)))
        return f"{len(jobs.done)} of {n_jobs} jobs done, about {clock(self.seconds_left())} left"

    def state(self, job: Job, process: Process) -> str:
        """Return the step of a running job and its time left."""
        (done, steps), left = self.steps(job), self._left(job, process)
        return f"step {done:,} of {steps:,}, " * bool(steps) + (f"about {clock(left)} left" if left else "about to end")

    def as_json(self) -> dict[str, Any]:
        """Return what `results.json` has under `jobs` while they run."""
        return {
            "time": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "seconds_left": round(self.seconds_left(), 1),
            "running": {each.job.name: self.state(each.job, each.process) for each in self.jobs.running},
            "waiting": [job.name for job in self.jobs.waiting],
        }

    @property
    def _pace(self) -> float:
        """Time of the jobs so far by their estimate."""
        ended = self.jobs.done & self.jobs.seconds.keys()
        estimated = sum(self._estimates[name] for name in ended)
        return sum(self.jobs.seconds[name] for name in ended) / estimated if estimated else 1.0

    def _left(self, job: Job, process: Process) -> float:
        """Seconds that a running job still needs: by its own steps once it has advanced, else by the pace so far."""
        elapsed, steps, seen = time.monotonic() - process.started, self.steps(job)[1], self._seen.get(job.name, [])
        (first, _), (step, then) = (seen[0], seen[-1]) if seen else ((0, 0.0), (0, 0.0))
        if step > first:
            return max(0.0, then * (steps - first) / (step - first) - elapsed)
        return max(0.0, self._estimates[job.name] * self._pace - elapsed)

    def seconds_left(self) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the jobs so far."""
        waiting = [(job.alone, self._estimates[job.name] * self._pace) for job in self.jobs.waiting]
        parallel = [seconds for alone, seconds in waiting if not alone]
        parallel += [self._left(running.job, running.process) for running in self.jobs.running]
        return sum(parallel) / self.slots + sum(seconds for alone, seconds in waiting if alone)


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    for longest, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < longest:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
