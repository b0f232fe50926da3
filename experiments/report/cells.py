"""Cells and columns of tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

Cell = dict[str, Any] | None
Section = dict[str, Any]
DIGITS = {"bpc": 3, "ppl": 2}


def unit_of(metrics: Mapping[str, Any]) -> str:
    """`bpc`, or `ppl` for words."""
    return "bpc" if "test/bpc" in metrics else "ppl"


def unit_in_words(unit: str, level: str) -> str:
    """As an axis names it."""
    return "perplexity" if unit == "ppl" else "bits per byte" if level == "byte" else "bits per character"


def text(words: str) -> Cell:
    """A cell of words."""
    return {"text": words}


def number(value: float | None, digits: int, **more: Any) -> Cell:
    """A cell of one number; None is an empty cell."""
    return None if value is None else {"value": value, "digits": digits, **more}


def over_seeds(values: Mapping[Any, float], digits: int) -> Cell:
    """Mean over seeds and, of two or more, its standard error: s / √n."""
    numbers = list(values.values())
    cell: dict[str, Any] = {"value": statistics.mean(numbers), "digits": digits}
    if len(numbers) > 1:
        cell["standard_error"] = statistics.stdev(numbers) / math.sqrt(len(numbers))
    return {**cell, "by_seed": {str(seed): value for seed, value in values.items()}}


def column(key: str, title: str, of: str, unit: str | None = None) -> dict[str, Any]:
    """A column of a table; `of` is label, ours or paper."""
    return {"key": key, "title": title, "of": of, "unit": unit}
