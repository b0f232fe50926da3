"""Sections of the report: tables, figures and differences, and how their numbers are printed."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from experiments.engine.jobs import Job, Outcomes

DIGITS = {"bpc": 3, "ppl": 2, "bpb": 3}


@dataclass(frozen=True)
class Number:
    """Cell with one number.

    Args:
        value: in the column's unit.
        digits: decimals shown.
        standard_error: for a mean over seeds or heads.
        by_seed: values whose mean is `value`, by seed.
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
    """Return a cell with one number, or an empty one for None."""
    if value is None:
        return None
    return Number(value, digits)


def over_seeds(by_seed: Mapping[int, float], digits: int) -> Number:
    """Return the mean over n seeds and, if n > 1, its standard error s / √n."""
    values = list(by_seed.values())
    error = None
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
    by_name = {str(seed): value for seed, value in by_seed.items()}
    return Number(statistics.mean(values), digits, error, by_name)


@dataclass(frozen=True)
class Column:
    """Column in a table.

    Args:
        of: words that name the row, the paper's numbers, or our measurements.
        key: finds its cell in a row.
        title: without unit.
        unit: the numbers' unit, or None.
    """

    of: Literal["label", "paper", "ours"]
    key: str
    title: str = ""
    unit: str | None = None


@dataclass(frozen=True)
class Table:
    """Table in the report.

    Args:
        id: unique in the report.
        caption: above the table.
        columns: labels first, then the paper's, then ours.
        rows: by key (an arm's, in most tables), from top to bottom; a row has cells by their columns' keys.
        notes: below the table.
    """

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Mapping[str, Mapping[str, Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Difference:
    """Difference that a claim rests on; positive supports the claim.

    Args:
        key: begins with the claim's id and a slash.
        title: names both sides.
        unit: the effect's unit; None for a plain number.
        effect: None while a side has no result.
        low: end of its 95 % interval; None where it is open. Without both ends chance cannot be told.
        high: the other end.
        percent: the effect in percent; for losses, percent of the loss that should be worse.
        percent_low: end of its interval in percent.
        percent_high: the other end.
        paper: the paper's effect in percent; None where it has none.
        untested: why the difference says nothing about its claim, in a sentence; empty where it does.
        tokens: training tokens at each validation that both sides have.
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
    tokens: Sequence[int] = ()
    course: Mapping[str, Sequence[float]] | None = None


@dataclass(frozen=True)
class Figure:
    """Figure in the report: the path to a PNG, relative to the report's folder, and its caption."""

    png: str
    caption: str


def copied_figures(outcomes: Outcomes, job: Job, captions: Mapping[str, str]) -> list[Figure]:
    """Copy figures that a finished job drew into the report's folder.

    Args:
        outcomes: names the folders.
        job: the job that drew them.
        captions: each figure's caption, by file name.
    """
    figures: list[Figure] = []
    if not outcomes.has(job):
        return figures
    for name, caption in captions.items():
        source = outcomes.runs / job.name / f"{name}.png"
        if source.is_file():
            target = outcomes.figures / f"{job.name}_{name}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            figures.append(Figure(f"{target.parent.name}/{target.name}", caption))
    return figures


@dataclass(frozen=True)
class Section:
    """Section of the report: a table or figure from the paper, and ours beside it.

    Args:
        id: unique in the report.
        title: heading; the part before a colon is its short form.
        here: this report's runs, in words.
        tables: in order.
        figures: in order, below the tables.
        differences: for the claims.
    """

    id: str
    title: str
    here: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    differences: Sequence[Difference] = ()


def unit_words(unit: str) -> str:
    """Return a unit's name for readers; `bpc` is used for characters."""
    names = {
        "ppl": "perplexity",
        "bpc": "bits per character",
        "bpb": "bits per byte",
        "bits a byte": "bits per byte",  # in results up to version 0.6.0
    }
    return names.get(unit, unit)


def decimal(value: float, digits: int, signed: bool = False) -> str:
    """Format a number: 1234.5 -> 1,234.5, with a minus sign (−); `signed` adds a plus sign."""
    text = f"{value:,.{int(digits)}f}"
    if signed:
        text = f"{value:+,.{int(digits)}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")  # zero after rounding
    return text.replace("-", "−")


def interval(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval, `[−0.04, +0.40]`; with one end, `[−∞, −0.04]`; empty without ends."""
    ends = [end for end in (low, high) if end is not None]
    if not ends:
        return ""
    # On which side of zero an end lies must be visible.
    while digits < 6 and any(end != 0 and round(end, digits) == 0 for end in ends):
        digits += 1
    low_text = "−∞"
    high_text = "+∞"
    if low is not None:
        low_text = decimal(low, digits, signed=True)
    if high is not None:
        high_text = decimal(high, digits, signed=True)
    return f"[{low_text}, {high_text}]"


def cell_text(content: Any) -> str:
    """Return a cell in `results.json` as text with ± and ≥, without its unit.

    A mean over seeds without a standard error is shown as a range: `128 to 256`.
    """
    if not isinstance(content, Mapping):
        return content or ""
    digits = content["digits"]
    text = decimal(content["value"], digits)
    error = content.get("standard_error")
    if error is not None:
        text += f" ± {decimal(error, digits)}"
    elif content.get("by_seed"):
        values = content["by_seed"].values()
        text = span([decimal(min(values), digits), decimal(max(values), digits)])
    if content.get("at_least"):
        text = f"≥ {text}"
    return text


def span(texts: Sequence[str]) -> str:
    """Return the first and the last text, `a to b`; one text if both are the same."""
    if texts[0] == texts[-1]:
        return texts[0]
    return f"{texts[0]} to {texts[-1]}"
