"""Results of jobs as figures of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.report.cells import Cell, Number
from experiments.report.sections import Figure
from txl_lightning.reporting.canvas import line_figure

Curves = Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]]


def copied_figure(outcomes: Outcomes, job: Job, name: str, caption: str, alt: str) -> Figure | None:
    """Copy a figure that a job drew into the report's folder; None if the job did not draw it."""
    found = outcomes.figure(job, name, caption, alt)
    return Figure(**found) if found.get("png") else None


def recl_cell(recl: Mapping[str, Any]) -> Cell:
    """Return a RECL of `recl.json` in tokens with its interval, open above the grid; empty where it has none."""
    value, low, high = recl["value"], recl.get("low"), recl.get("high")
    high = None if recl.get("high_at_least") else high
    return None if value is None else Number(value, 0, low=low, high=high, at_least=recl["at_least"])


def drawn_figure(
    outcomes: Outcomes,
    name: str,
    curves: Curves,
    x_label: str,
    y_label: str,
    title: str,
    caption: str,
    alt: str,
    dashed: Curves | None = None,
    log_x: bool = False,
    dashed_label: str = "",
) -> Figure:
    """Draw curves into the report's folder."""
    path = outcomes.figures / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    line_figure(path, curves, x_label, y_label, title, dashed or {}, log_x, dashed_label)
    return Figure(f"{outcomes.figures.name}/{path.name}", None, caption, alt)
