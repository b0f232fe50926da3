"""Progress of a reproduction: jobs done, steps and loss of the running ones, time left."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.engine.jobs import Job
from experiments.engine.runner import Runner
from txl_lightning.training.callbacks.progress_file import PROGRESS_FILE

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 0.25
SEEN = 0.1  # share of its steps from which a running training shows its speed
CLEAR_LINE = "\r\033[K"


class Progress:
    """Line on standard error, updated on a terminal; else a line for each ended job and one every 30 seconds.

    Args:
        jobs: all jobs, finished ones included.
        estimate: seconds of a job that has not run, on the machine of the profile.
        slots: jobs that run at once.
    """

    def __init__(self, jobs: list[Job], estimate: Callable[[Job], float], slots: int) -> None:
        self.jobs, self.estimate, self.slots = {job.name: job for job in jobs}, estimate, slots
        self._on_terminal = sys.stderr.isatty()
        self._reported: set[str] = set()
        self._before: set[str] = set()
        self._last_update: float | None = None

    def __call__(self, runner: Runner) -> None:
        """Report jobs that ended since the last call and, when it is time, the running ones."""
        if self._last_update is None:
            self._before = set(runner.done)  # finished in earlier calls
            self._reported = set(self._before)
        for name in [name for name in (*runner.done, *runner.failed) if name not in self._reported]:
            self._reported.add(name)
            seconds = runner.record(self.jobs[name]).get("seconds", 0)
            self._print_line(runner.failed.get(name) or f"{name}: done in {seconds:.0f} s")
        now, pause = time.monotonic(), SECONDS_BETWEEN_UPDATES if self._on_terminal else SECONDS_BETWEEN_LINES
        if self._last_update is None or now - self._last_update >= pause:
            self._last_update = now
            if runner.running:
                self._print_status(self.status(runner))

    def status(self, runner: Runner) -> str:
        """Return one line: jobs done, time left, steps and loss of each running job."""
        done = f"{len(runner.done)} of {len(self.jobs)} jobs done, about {clock(self.seconds_left(runner))} left"
        running = (f"{r.job.name} {training_progress(runner.directory(r.job))}".strip() for r in runner.running)
        return " · ".join([done, *running])

    def seconds_left(self, runner: Runner) -> float:
        """Return the estimated seconds until all jobs are done, at the pace of the trainings so far."""
        pace = self.pace(runner)
        parallel = sum(self.estimate(job) * pace for job in runner.waiting if not job.alone)
        for running in runner.running:
            parallel += max(0.0, self.estimate(running.job) * pace - (time.perf_counter() - running.started))
        return parallel / self.slots + sum(self.estimate(job) * pace for job in runner.waiting if job.alone)

    def pace(self, runner: Runner) -> float:
        """Return seconds taken / estimated of this call's trainings, the running ones included; 1 before the first."""
        taken = estimated = 0.0
        for job in (job for name, job in runner.done.items() if name not in self._before and job.command == "train"):
            taken, estimated = taken + runner.record(job).get("seconds", 0), estimated + self.estimate(job)
        for job in (running.job for running in runner.running if running.job.command == "train"):
            state = _training_state(runner.directory(job))
            if state and state["steps"] >= SEEN * state["max_steps"]:
                taken += state["seconds"]
                estimated += self.estimate(job) * state["steps"] / state["max_steps"]
        return taken / estimated if taken and estimated else 1.0

    def close(self) -> None:
        """Clear the status line of a terminal."""
        if self._on_terminal:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def _print_line(self, text: str) -> None:
        print((CLEAR_LINE if self._on_terminal else "") + text, file=sys.stderr, flush=True)

    def _print_status(self, text: str) -> None:
        if self._on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(CLEAR_LINE + text[:width], end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def training_progress(run: Path) -> str:
    """Return steps and loss of a training, such as `600/1500 bpc 2.610`, from its progress file; empty without one."""
    state = _training_state(run)
    if state is None:
        return ""
    loss = "" if state["loss"] is None else f" {state['unit']} {state['loss']:.3f}"
    return f"{state['steps']}/{state['max_steps']}{loss}"


def _training_state(run: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((run / PROGRESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return state


def clock(seconds: float) -> str:
    """Return a duration such as `45 s`, `3 min`, `2.5 h` or `12 days`."""
    for longest, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < longest:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
