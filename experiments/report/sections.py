"""Sections of the report: tables, figures and samples, the text of their cells, and their form in `results.json`."""

from __future__ import annotations

import math
import shutil
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from experiments.engine.jobs import Job, Outcomes

DIGITS = {"bpc": 3, "ppl": 2}
HEADINGS = {"label": "", "ours": "here", "paper": "paper"}
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories that a page cannot show
Entry = TypeVar("Entry")


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


def over_seeds(by_seed: Mapping[int, float], digits: int, spread: bool = True) -> Number:
    """Return the mean over n seeds and, if n > 1 and `spread`, its standard error s / √n."""
    values = list(by_seed.values())
    error = statistics.stdev(values) / math.sqrt(len(values)) if spread and len(values) > 1 else None
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

    @classmethod
    def filled(
        cls,
        id: str,
        caption: str,
        rows: Mapping[str, Entry],
        columns: Mapping[Column, Callable[[Entry], Cell | str]],
        notes: tuple[str, ...] = (),
    ) -> Table:
        """Return a table with a row for each entry, from functions that return an entry's cell in each column."""
        cells = {
            key: {column.key: _as_cell(value(entry)) for column, value in columns.items()}
            for key, entry in rows.items()
        }
        return cls(id, caption, tuple(columns), cells, notes)

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


def _as_cell(value: Cell | str) -> Cell:
    return Text(value) if isinstance(value, str) else value


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
    found = []
    for name, (caption, alt) in captions.items():
        files = {}
        for suffix in ("png", "svg") if outcomes.has(job) else ():
            source = outcomes.runs / job.name / f"{name}.{suffix}"
            if source.is_file():
                path, files[suffix] = outcomes.figure(f"{job.name}_{name}.{suffix}")
                shutil.copyfile(source, path)
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


def decimal(value: float, digits: int, signed: bool = False) -> str:
    """Format a number: 1234.5 -> 1,234.5, with a minus sign (−); `signed` adds a plus sign."""
    text = f"{value:{'+' if signed else ''},.{int(digits)}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")  # zero after rounding
    return text.replace("-", "−")


def percent(value: float) -> str:
    """Format an effect in percent, with its sign; with a decimal below 100 %."""
    return f"{decimal(value, 1 if abs(value) < 100 else 0, signed=True)}\u00a0%"


def interval(low: float | None, high: float | None, digits: int, *, signed: bool = False) -> str:
    """Format an interval, `[−0.04, 0.40]`; with one end, `[−∞, −0.04]`; empty without ends."""
    if low is None and high is None:
        return ""
    while digits < 6 and any(value and not round(value, digits) for value in (low, high)):
        digits += 1  # on which side of zero an end lies must be visible
    ends = [
        sign + "∞" if end is None else decimal(end, digits, signed=signed) for sign, end in (("−", low), ("+", high))
    ]
    return f"[{', '.join(ends)}]"


def duration(seconds: float) -> str:
    """Format a duration: 75.1 -> 75 s; 5000 -> 1 h 23 min."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def visible(text: str) -> str:
    """Escape characters that a page cannot show (controls, lone surrogates), except line ends and tabs."""
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in HIDDEN else sign.encode("unicode_escape").decode()
        for sign in text
    )


def cell_text(found: Cell, common: Sequence[str] = ()) -> str:
    """Return a cell with ±, interval and ≥, without its unit; with its count n if it has other seeds than `common`.

    A mean over seeds without a standard error is shown by the range of its values: `128 to 256`.
    """
    if not isinstance(found, Number):
        return visible(found.text) if isinstance(found, Text) else ""
    values = [found.value] if found.standard_error is not None or not found.by_seed else list(found.by_seed.values())
    spread = dict.fromkeys(decimal(value, found.digits) for value in (min(values), max(values)))
    text = ("≥ " if found.at_least else "") + " to ".join(spread)
    if found.standard_error is not None:
        text += f" ± {decimal(found.standard_error, found.digits)}"
    if ends := interval(found.low, found.high, found.digits):
        text += f" {ends}"
    return f"{text} (n = {len(found.by_seed)})" if found.by_seed and set(found.by_seed) != set(common) else text


def seeds_text(found: Cell) -> str:
    """Return the values of a mean by seed; empty for other cells."""
    if not isinstance(found, Number) or not found.by_seed:
        return ""
    values = sorted(found.by_seed.items(), key=lambda item: int(item[0]))
    return "; ".join(f"seed {seed}: {decimal(value, found.digits)}" for seed, value in values)


def common_seeds(table: Table) -> tuple[str, ...]:
    """Return the seeds that most means of a table are over."""
    seeds = Counter(tuple(sorted(found.by_seed, key=int)) for found in table.numbers if found.by_seed)
    return seeds.most_common(1)[0][0] if seeds else ()


def notes(table: Table) -> list[str]:
    """Return the notes of a table, then the meaning of the signs in its cells."""
    common = common_seeds(table)
    seeds = f"seed{'s' if len(common) > 1 else ''} {', '.join(common)} (n = {len(common)})"
    texts = list(table.notes)
    if len(common) > 1:
        texts.append(f"Here: mean ± standard error over {seeds}; a cell with other seeds has its own n.")
    elif common:
        texts.append(f"Here: {seeds}, so without a standard error; a cell with more seeds has its own n.")
    if any(found.low is not None or found.high is not None for found in table.numbers):
        texts.append("In brackets: a 95 % interval.")
    if any(found.at_least for found in table.numbers):
        texts.append("≥: as far as was measured; the value may lie beyond.")
    return texts


def values_by_seed(table: Table) -> tuple[list[str], list[list[str]]] | None:
    """Return header and rows of the values by seed: labels in one column, then each column that has such values."""
    labels = [column.key for column in table.columns if column.of == "label"]
    shown = [column for column in table.columns if any(seeds_text(row[column.key]) for row in table.rows.values())]
    rows = [
        [", ".join(filter(None, (cell_text(row[key]) for key in labels))), *(seeds_text(row[c.key]) for c in shown)]
        for row in table.rows.values()
    ]
    return (["", *(column.heading for column in shown)], [row for row in rows if any(row[1:])]) if shown else None
