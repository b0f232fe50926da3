"""Sections of the report: tables, figures and samples, and their form in `results.json`."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes

DIGITS = {"bpc": 3, "ppl": 2}
HEADINGS = {"label": "", "ours": "here", "paper": "paper"}


@dataclass(frozen=True)
class Text:
    """Cell of words."""

    text: str


@dataclass(frozen=True)
class Number:
    """Cell of one number, with a standard error or a 95 % interval where it has one (never both).

    Args:
        value: in the column's unit.
        digits: decimals shown.
        standard_error: of a mean.
        by_seed: values that `value` is the mean of, by seed.
        low: lower end of the interval; None with `high` for an interval without lower end.
        high: upper end of the interval; None with `low` for an interval without upper end.
        at_least: the value is a lower bound.
        step: of the grid on which the value was measured: a smaller difference cannot be seen.
    """

    value: float
    digits: int
    standard_error: float | None = None
    by_seed: Mapping[str, float] | None = None
    low: float | None = None
    high: float | None = None
    at_least: bool | None = None
    step: float | None = None


Cell: TypeAlias = Text | Number | None
"""Content of a cell; None for an empty one."""

Row: TypeAlias = Mapping[str, Cell]
"""Cells by key of their column."""


def cell(value: float | None, digits: int) -> Cell:
    """Return a cell of one number, or an empty one for None."""
    return None if value is None else Number(value, digits)


def over_seeds(by_seed: Mapping[int, float], digits: int) -> Number:
    """Return the mean over n seeds and, if n > 1, its standard error s / √n."""
    values = list(by_seed.values())
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Number(statistics.mean(values), digits, error, {str(seed): value for seed, value in by_seed.items()})


@dataclass(frozen=True)
class Column:
    """Column of a table; `label`, `ours` and `paper` make one.

    Args:
        key: of its cells in a row.
        title: without unit.
        of: words that name the row, our measurements, or numbers of the paper.
        unit: of its numbers, or None.
    """

    key: str
    title: str
    of: Literal["label", "ours", "paper"]
    unit: str | None

    @property
    def heading(self) -> str:
        """Group, title and unit in one line, for tables with a single header row."""
        text = ": ".join(part for part in (HEADINGS[self.of], self.title) if part)
        return f"{text} ({self.unit})" if self.unit else text


def label(key: str, title: str = "", unit: str | None = None) -> Column:
    """Return a column that names the rows."""
    return Column(key, title, "label", unit)


def ours(key: str, title: str, unit: str | None = None) -> Column:
    """Return a column of our measurements."""
    return Column(key, title, "ours", unit)


def paper(key: str, title: str, unit: str | None = None) -> Column:
    """Return a column of the paper's numbers."""
    return Column(key, title, "paper", unit)


@dataclass(frozen=True)
class Table:
    """Table of the report.

    Args:
        id: unique in the report; claims name their tables by it.
        caption: above the table.
        columns: from left to right, labels first.
        rows: by key (of an arm, for most tables), from top to bottom; each has a cell for each column.
        notes: below the table.
    """

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Row]
    notes: tuple[str, ...] = ()

    def number(self, row: str, column: str) -> Number:
        """Return a cell that holds a number.

        Raises:
            KeyError: no such row or column.
            TypeError: the cell is empty or holds text.
        """
        found = self.rows[row][column]
        if not isinstance(found, Number):
            raise TypeError(f"table {self.id}, row {row}, column {column}: must be a number, is {found}")
        return found

    def title(self, row: str) -> str:
        """Return the text in the first column of a row."""
        found = self.rows[row][self.columns[0].key]
        return found.text if isinstance(found, Text) else ""

    @property
    def numbers(self) -> list[Number]:
        """All cells that hold a number."""
        return [found for row in self.rows.values() for found in row.values() if isinstance(found, Number)]


@dataclass(frozen=True)
class Figure:
    """Figure of the report.

    Args:
        png: path, relative to the report's folder.
        svg: path of the same figure as SVG, or None.
        caption: below the figure.
        alt: description for readers who cannot see it.
    """

    png: str
    svg: str | None
    caption: str
    alt: str


def copied_figures(outcomes: Outcomes, job: Job, captions: Mapping[str, tuple[str, str]]) -> tuple[Figure, ...]:
    """Copy figures that a job drew into the report's folder; those that it did not draw are left out.

    Args:
        outcomes: folders of the runs and of the report's figures.
        job: it drew them.
        captions: caption and alt of each figure, by the name of its files.
    """
    outcomes.figures.mkdir(parents=True, exist_ok=True)
    found = []
    for name, (caption, alt) in captions.items():
        files: dict[str, str] = {}
        for suffix in ("png", "svg"):
            source = outcomes.runs / job.name / f"{name}.{suffix}"
            if source.is_file():
                shutil.copyfile(source, outcomes.figures / f"{job.name}_{name}.{suffix}")
                files[suffix] = f"{outcomes.figures.name}/{job.name}_{name}.{suffix}"
        if "png" in files:
            found.append(Figure(files["png"], files.get("svg"), caption, alt))
    return tuple(found)


@dataclass(frozen=True)
class Sample:
    """Text that a model wrote.

    Args:
        title: above it.
        context: text the model was given.
        truth: text that follows the context in the corpus.
        text: text the model wrote.
    """

    title: str
    context: str
    truth: str
    text: str


@dataclass(frozen=True)
class Section:
    """Section of the report: one table or figure of the paper, and ours beside it.

    Args:
        id: unique in the report.
        title: heading; the part before a colon is its short form.
        paper: the paper's finding.
        here: the runs of this report.
        tables: in order.
        figures: in order, below the tables.
        samples: in order, at the end.
    """

    id: str
    title: str
    paper: str
    here: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    samples: tuple[Sample, ...] = ()


def to_json(part: Any) -> Any:
    """Return a section, or a part of one, as plain JSON; fields at their default are left out, `tables` never is."""
    if isinstance(part, Mapping):
        return {str(key): to_json(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [to_json(value) for value in part]
    if not is_dataclass(part):
        return part
    values = {field.name: (getattr(part, field.name), field.default) for field in fields(part)}
    plain = {name: to_json(value) for name, (value, default) in values.items() if value != default or name == "tables"}
    if isinstance(part, Table):
        plain |= {"rows": list(plain["rows"].values()), "row_keys": list(part.rows)}
    return plain
