"""Cells of a table: text, numbers, means over seeds, estimates with an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

DIGITS = {"bpc": 3, "ppl": 2}


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
        difference: `value` minus a reference, in the column's unit.
    """

    value: float
    digits: int
    standard_error: float | None = None
    by_seed: Mapping[str, float] | None = None
    low: float | None = None
    high: float | None = None
    at_least: bool | None = None
    step: float | None = None
    difference: float | None = None


Cell: TypeAlias = Text | Number | None
"""Content of a cell; None for an empty one."""


def number(value: float | None, digits: int) -> Cell:
    """Return a cell of one number, or an empty one for None."""
    return None if value is None else Number(value, digits)


def over_seeds(by_seed: Mapping[int, float], digits: int) -> Number:
    """Return the mean over n seeds and, if n > 1, its standard error s / √n."""
    values = list(by_seed.values())
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Number(statistics.mean(values), digits, error, {str(seed): value for seed, value in by_seed.items()})


def unit_in_words(unit: str, level: str) -> str:
    """Return the name of a loss's unit for the axis of a figure."""
    return "perplexity" if unit == "ppl" else "bits per byte" if level == "byte" else "bits per character"
