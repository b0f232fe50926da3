"""What a reproduction shows while it runs: jobs done, what runs now with its loss, time left."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from experiments.engine.jobs import Job
from experiments.engine.runner import LOG, Runner

STATE = re.compile(r"(\d+)/(\d+) \[[^\]]*?(?:, ((?:nll|bpc|ppl)[^\]]*))?\]\s*$")
LOSS = re.compile(r"\b(bpc|ppl) ([\d.]+)")
EVERY_SECONDS = 30.0  # without a terminal


class Progress:
    """One moving line on a terminal; without one, a line for every job that ended and one every 30 seconds.

    Args:
        jobs: all of them, the finished ones too.
        estimate: seconds of a job that has not run.
        slots: how many run at once.
    """

    def __init__(self, jobs: list[Job], estimate: Callable[[Job], float], slots: int) -> None:
        self.jobs, self.estimate, self.slots = jobs, estimate, slots
        self.on_terminal = sys.stderr.isatty()
        self.told: set[str] = set()
        self.last = 0.0

    def __call__(self, runner: Runner) -> None:
        """Show the state of things, if there is news."""
        if not self.last:  # what an earlier call finished is no news
            self.told = set(runner.done)
        ended = [name for name in (*runner.done, *runner.failed) if name not in self.told]
        for name in ended:
            self.told.add(name)
            seconds = runner.record(next(job for job in self.jobs if job.name == name)).get("seconds", 0)
            self._line(runner.failed.get(name) or f"{name}: done in {seconds:.0f} s")
        now = time.monotonic()
        if now - self.last < (0.25 if self.on_terminal else EVERY_SECONDS):
            return
        self.last = now
        if not runner.running:
            return
        text = f"{len(runner.done)} of {len(self.jobs)} jobs done, about {clock(self.left(runner))} left"
        shown = [
            f"{running.job.name} {state(runner.directory(running.job) / LOG)}".strip() for running in runner.running
        ]
        self._status(" · ".join([text, *shown]))

    def left(self, runner: Runner) -> float:
        """Seconds until all jobs are done."""
        waiting = [job for job in runner.waiting if not job.alone]
        shared = sum(self.estimate(job) for job in waiting)
        for running in runner.running:
            shared += max(0.0, self.estimate(running.job) - (time.perf_counter() - running.started))
        return shared / self.slots + sum(self.estimate(job) for job in runner.waiting if job.alone)

    def _line(self, text: str) -> None:
        print(("\r\033[K" if self.on_terminal else "") + text, file=sys.stderr, flush=True)

    def _status(self, text: str) -> None:
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + text[:width], end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the moving line."""
        if self.on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def state(log: Path) -> str:
    """`600/1500 bpc 2.61`: what a training's progress bar wrote last; empty if it has not begun."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if found := STATE.search(line):
            loss = LOSS.search(found[3] or "")
            return f"{found[1]}/{found[2]}" + (f" {loss[1]} {loss[2]}" if loss else "")
    return ""


def clock(seconds: float) -> str:
    """`45 s`, `3 min`, `2.5 h`, `12 days`."""
    for longest, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < longest:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
