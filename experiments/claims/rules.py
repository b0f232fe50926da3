"""Rules that compare cells of tables: each returns a mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from experiments.report.cells import Cell, Number

Mark = Literal["holds", "does not hold", "within noise"]


def less(one: Number, other: Number) -> Mark:
    """Return whether one loss is below another: every seed is, and the means differ by two standard errors.

    The standard error of the difference is √(s₁² + s₂²). With fewer than two seeds the mark is "within noise".
    """
    ones, others = _values(one), _values(other)
    if min(len(ones), len(others)) < 2:
        return "within noise"
    margin = 2 * math.hypot(_error(one), _error(other))
    if max(ones) < min(others) and other.value - one.value > margin:
        return "holds"
    if max(others) < min(ones) and one.value - other.value > margin:
        return "does not hold"
    return "within noise"


def positive(cell: Cell) -> Mark:
    """Return whether a difference is above zero: every seed is, and the mean by two standard errors and a digit."""
    if not isinstance(cell, Number) or len(_values(cell)) < 2:
        return "within noise"
    margin = max(2 * _error(cell), 10**-cell.digits)
    if min(_values(cell)) > 0 and cell.value > margin:
        return "holds"
    return "does not hold" if max(_values(cell)) < 0 and cell.value < -margin else "within noise"


def longer(one: Number, other: Number) -> Mark:
    """Return whether one length is above another: their 95 % intervals do not overlap."""
    if _low(one) > _high(other):
        return "holds"
    return "does not hold" if _high(one) < _low(other) else "within noise"


def above(cell: Number, limit: float) -> Mark:
    """Return whether a mean over heads is above a limit by two standard errors."""
    margin = 2 * _error(cell)
    if cell.value - margin > limit:
        return "holds"
    return "does not hold" if cell.value + margin < limit else "within noise"


def apart(low: Number, high: Number) -> Mark:
    """Return whether one mean over heads is below another by two standard errors of the difference."""
    margin = 2 * math.hypot(_error(low), _error(high))
    if high.value - low.value > margin:
        return "holds"
    return "does not hold" if low.value - high.value > margin else "within noise"


def all_of(marks: Sequence[Mark]) -> Mark:
    """Return the mark of a claim of several parts: it holds if all do, and does not hold if one does not."""
    if "does not hold" in marks:
        return "does not hold"
    return "holds" if marks and all(mark == "holds" for mark in marks) else "within noise"


def _values(cell: Number) -> list[float]:
    return list((cell.by_seed or {}).values())


def _error(cell: Number) -> float:
    return cell.standard_error or 0.0


def _low(cell: Number) -> float:
    return cell.value if cell.low is None else cell.low


def _high(cell: Number) -> float:
    return cell.value if cell.high is None else cell.high
