"""Sections of the report: tables, figures and differences, and the text of their numbers."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from experiments.engine.jobs import Job, Outcomes, Pending

DIGITS = {"bpc": 3, "ppl": 2, "bpb": 3}
HEADINGS = {"label": "", "paper": "paper", "ours": "here"}  # in the order of the columns
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Number:
    """Cell of one number.

    Args:
        value: in the column's unit.
        digits: decimals shown.
        standard_error: of a mean over seeds or heads.
        by_seed: values that `value` is the mean of, by seed.
        at_least: the value is a lower bound.
    """

    value: float
    digits: int
    standard_error: float | None = None
    by_seed: Mapping[str, float] | None = None
    at_least: bool | None = None


Cell: TypeAlias = Number | str | None
"""Content of a cell; None for an empty one."""


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
        unit: of its numbers, or None.
        of: words that name the row, our measurements, or numbers of the paper.
    """

    key: str
    title: str = ""
    unit: str | None = None
    of: Literal["label", "ours", "paper"] = "ours"


label, ours, paper = (partial(Column, of=of) for of in ("label", "ours", "paper"))


@dataclass(frozen=True)
class Table:
    """Table of the report.

    Args:
        id: unique in the report.
        caption: above the table.
        columns: from left to right, labels first.
        rows: by key (of an arm, for most tables), from top to bottom; each has a cell for each column.
        notes: below the table.
    """

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    notes: tuple[str, ...] = ()

    @classmethod
    def filled(
        cls,
        id: str,
        caption: str,
        rows: Mapping[str, Entry],
        columns: Mapping[Column, Callable[[Entry], Cell]],
        notes: tuple[str, ...] = (),
    ) -> Table:
        """Return a table with a row for each entry, from functions that return an entry's cell in each column.

        A cell is empty while the result for it is pending.
        """

        def made(value: Callable[[Entry], Cell], entry: Entry) -> Cell:
            try:
                return value(entry)
            except Pending:
                return None

        cells = {key: {column.key: made(of, entry) for column, of in columns.items()} for key, entry in rows.items()}
        return cls(id, caption, tuple(columns), cells, notes)


@dataclass(frozen=True)
class Difference:
    """Difference that a claim rests on; positive supports the claim.

    Args:
        key: begins with the claim's id and a slash.
        title: names both sides.
        unit: of the effect; None for a plain number.
        effect: None while a side has no result.
        low: end of the 95 % interval; None where it is open. Without both ends chance cannot be told.
        high: the other end.
        percent: the effect in percent of one side: for losses of the one that should be worse.
        percent_low: end of the interval in percent.
        percent_high: the other end.
        paper: the paper's effect in percent; None where it has none.
        untested: why the difference says nothing about its claim, in a sentence; empty where it does.
        tokens: tokens of training at each validation that both sides have.
        course: by seed, the effect in percent at these validations, at training's lengths; None without.
    """

    key: str
    title: str
    unit: str | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    paper: float | None = None
    untested: str = ""
    tokens: tuple[int, ...] = ()
    course: Mapping[str, Sequence[float]] | None = None


@dataclass(frozen=True)
class Figure:
    """Figure of the report: the path of a PNG, relative to the report's folder, and its caption."""

    png: str
    caption: str


def copied_figures(outcomes: Outcomes, job: Job, captions: Mapping[str, str]) -> tuple[Figure, ...]:
    """Copy figures that a finished job drew into the report's folder.

    Args:
        outcomes: folders of the runs and of the report's figures.
        job: it drew them.
        captions: caption of each figure, by the name of its file.
    """
    found = []
    for name, caption in captions.items():
        source = outcomes.runs / job.name / f"{name}.png"
        if outcomes.has(job) and source.is_file():
            path, png = outcomes.figure(f"{job.name}_{name}.png")
            shutil.copyfile(source, path)
            found.append(Figure(png, caption))
    return tuple(found)


@dataclass(frozen=True)
class Section:
    """Section of the report: one table or figure of the paper, and ours beside it.

    Args:
        id: unique in the report.
        title: heading; the part before a colon is its short form.
        here: the runs of this report.
        tables: in order.
        figures: in order, below the tables.
        differences: for the claims.
    """

    id: str
    title: str
    here: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    differences: tuple[Difference, ...] = ()


def unit_words(unit: str, level: str = "") -> str:
    """Return the name of a unit for readers; `level` is that of the tokens, of which `bpc` are bits."""
    symbol = {"byte": "byte", "char": "character", "ids": "token"}.get(level, "symbol")
    return {"ppl": "perplexity", "bpc": f"bits a {symbol}", "bpb": "bits a byte"}.get(unit, unit)


def to_json(part: Any) -> Any:
    """Return a section, or a part of one, as plain JSON; fields that are None or empty are left out."""
    if isinstance(part, Mapping):
        return {str(key): to_json(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [to_json(value) for value in part]
    if not is_dataclass(part):
        return part
    values = {field.name: to_json(getattr(part, field.name)) for field in fields(part)}
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def decimal(value: float, digits: int, signed: bool = False) -> str:
    """Format a number: 1234.5 -> 1,234.5, with a minus sign (−); `signed` adds a plus sign."""
    text = f"{value:{'+' if signed else ''},.{int(digits)}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")  # zero after rounding
    return text.replace("-", "−")


def interval(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval, `[−0.04, +0.40]`; with one end, `[−∞, −0.04]`; empty without ends."""
    if low is None and high is None:
        return ""
    while digits < 6 and any(value and not round(value, digits) for value in (low, high)):
        digits += 1  # on which side of zero an end lies must be visible
    ends = [sign + "∞" if end is None else decimal(end, digits, True) for sign, end in (("−", low), ("+", high))]
    return f"[{', '.join(ends)}]"


def cell_text(found: Any) -> str:
    """Return a cell of `results.json` as text with ± and ≥, without its unit.

    A mean over seeds without a standard error is shown by the range of its values: `128 to 256`.
    """
    if not isinstance(found, Mapping):
        return found or ""
    digits, error, by_seed = found["digits"], found.get("standard_error"), found.get("by_seed")
    values = [found["value"]] if error is not None or not by_seed else list(by_seed.values())
    text = " to ".join(dict.fromkeys(decimal(value, digits) for value in (min(values), max(values))))
    return ("≥ " if found.get("at_least") else "") + text + ("" if error is None else f" ± {decimal(error, digits)}")
