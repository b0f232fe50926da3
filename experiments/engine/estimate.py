"""What a reproduction will take, before it is run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.profiles import Profile
from experiments.engine.progress import clock
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup
from txl_lightning.errors import UserError
from txl_lightning.reporting.tables import markdown_table


@dataclass
class Estimate:
    """Seconds of a job: from those that ran already in this directory, else from the profile's figures.

    Args:
        profile: whose `tokens_per_second` and `seconds` are used.
        runner: knows what has run.
    """

    profile: Profile
    runner: Runner

    def seconds(self, job: Job) -> float:
        """Wall-clock time of one job."""
        beside = self.profile.seconds[job.command]
        if job.command != "train":
            return beside
        return beside + tokens(job) / self.tokens_per_second

    @cached_property
    def tokens_per_second(self) -> float:
        """Of the profile; `measured` tells whether they were measured here."""
        rates = [rate for name in self.runner.keys if (rate := self._rate(name))]
        return sorted(rates)[len(rates) // 2] if rates else self.profile.tokens_per_second

    def _rate(self, name: str) -> float | None:
        try:
            metrics = Outcomes(self.runner.runs, self.runner.runs).result(Job(name, "train", (), ""), "metrics.json")
            return float(metrics["tokens"]) / float(metrics["seconds"])
        except (UserError, KeyError, ZeroDivisionError):
            return None


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tokens(job: Job) -> int:
    """That a training reads."""
    config = composed(job.overrides)
    return config.trainer.max_steps * config.data.batch_size * config.data.segment_len


def plan_text(setup: Setup, jobs: list[Job], runner: Runner, estimate: Estimate, parallel: int) -> str:
    """Every job with what uses it, its state and its time, and the sums."""
    rows, left, alone = [], 0.0, 0.0
    for job in jobs:
        seconds = estimate.seconds(job)
        finished = runner.is_finished(job)
        if not finished:
            alone, left = (alone + seconds, left) if job.alone else (alone, left + seconds)
        size = f"{tokens(job):,} tokens" if job.command == "train" else ""
        rows.append([job.name, job.command, size, ", ".join(job.sections), "finished" if finished else clock(seconds)])
    trainings = [job for job in jobs if job.command == "train"]
    trained = len(trainings)
    total = left / min(parallel, cores()) + alone
    measured = setup.profile.measured
    rate = f"{estimate.tokens_per_second:,.0f} tokens/s of a training ({measured})"
    if estimate.tokens_per_second != setup.profile.tokens_per_second:
        rate = f"{estimate.tokens_per_second:,.0f} tokens/s of a training, as the finished ones here had"
    return "\n".join(
        [
            markdown_table(["job", "txl", "size", "used by", "time"], rows),
            f"profile {setup.profile.name}: {trained} trainings, {len(jobs) - trained} measurements, "
            f"{parallel} side by side",
            f"left: about {clock(total)}, at {rate}",
            f"needs: {setup.profile.needs}",
            f"into {setup.directory}",
            *(f"a training: txl {' '.join(job.words(setup.runs))}" for job in trainings[:1]),
        ]
    )
