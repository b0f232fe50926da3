"""Report that is written while the jobs of a reproduction run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import ModuleType
from typing import Any

from experiments.claims import judged
from experiments.engine.jobs import Job, Outcomes, Pending
from experiments.engine.plan import Plan, Stopwatch
from experiments.report.pages import assemble, write_report
from experiments.report.sections import Section
from experiments.tables import regime
from txl_lightning.errors import UserError
from txl_lightning.jobs.processes import Progress

EVERY_SECONDS = 30.0
SHARE = 30.0  # of this many seconds, at most one is spent on writing


@dataclass
class LiveReport:
    """Report of the jobs that are finished, written again every 30 seconds, or less often where that takes long.

    Args:
        plan: all jobs.
        modules: of the sections, by id, in order.
        watch: wall-clock time.

    Attributes:
        error: first bug of a section; it must not end the run, and is raised by `finish`.
    """

    plan: Plan
    modules: Mapping[str, ModuleType]
    watch: Stopwatch
    error: Exception | None = None
    _progress: Progress[Job] | None = None
    _finished: frozenset[str] | None = None
    _sections: list[Section] = field(default_factory=list)
    _done: set[str] | None = None
    _next: float = 0.0

    def tick(self, progress: Progress[Job]) -> None:
        """Write the report if the last time is long enough ago, but not before the next jobs were started."""
        self._progress = progress
        self.watch.tick()
        done, before, began = set(progress.jobs.done), self._done, time.monotonic()
        self._done = done
        if began < self._next or (before is not None and done != before):
            return
        try:
            self._write(stopped=False)
        except UserError as error:
            print(f"report: {error}", file=sys.stderr, flush=True)
        self._next = began + max(EVERY_SECONDS, SHARE * (time.monotonic() - began))

    def finish(self) -> dict[str, Any]:
        """Write the report once more, after the last job or an interruption, and return its results.

        Raises:
            UserError: all jobs are finished, and a result cannot be read; or the report cannot be written.
            Exception: a bug of a section.
        """
        results = self._write(stopped=True)
        if self.error is not None:
            raise self.error
        return results

    def _write(self, stopped: bool) -> dict[str, Any]:
        done = self._progress.jobs.done if self._progress else {job.name for job in self.plan.finished}
        finished = frozenset(done) if len(done) < len(self.plan.jobs) else None
        setup = self.plan.setup
        outcomes = Outcomes(setup.runs, setup.figures, tuple(self.plan.jobs), finished)
        if finished != self._finished or not self._sections or finished is None:
            self._sections = [self._section(name, outcomes) for name in self.modules]
            self._finished = finished
        state = None if finished is None else self._state(len(done), stopped)
        claims = judged(self._sections)
        sections = [regime.with_marks(one, claims) if one.id == "regime" else one for one in self._sections]
        results = assemble(self.plan, outcomes, sections, claims, self.watch, state)
        write_report(results, setup.directory)
        return results

    def _section(self, name: str, outcomes: Outcomes) -> Section:
        """Section with what is there; one whose results are not there yet says which job it waits for."""
        module = self.modules[name]
        try:
            made: Section = module.section(self.plan.setup, outcomes)
            return made
        except Pending as pending:
            here = f"pending: waits for {pending}"
        except UserError as error:
            if outcomes.finished is None:
                raise
            here = f"pending: {error}"
        except Exception as error:
            if outcomes.finished is None:
                raise
            here = f"pending: could not be made ({type(error).__name__}: {error})"
            if self.error is None:
                self.error = error
                print(f"report: section {name}: {here}", file=sys.stderr, flush=True)
        return Section(name, module.TITLE, module.PAPER, here)

    def _state(self, n_finished: int, stopped: bool) -> dict[str, Any]:
        """`progress` of `results.json`."""
        progress = self._progress
        return {
            "finished": n_finished,
            "jobs": len(self.plan.jobs),
            "running": [] if stopped or progress is None else progress.running(),
            "failed": list(progress.jobs.failed.values()) if progress else [],
            "seconds_left": round(progress.seconds_left() if progress else 0.0, 1),
            "stopped": stopped,
            "continue": self.plan.setup.again,
            "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
