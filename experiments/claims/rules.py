"""Rules that compare cells of `results.json`, and what they say."""

from __future__ import annotations

import math
from typing import Any, Literal

Results = dict[str, Any]
Mark = Literal["holds", "does not hold", "within noise"]
Verdict = tuple[Mark, str]


def rows_of(results: Results, table: str) -> dict[str, dict[str, Any]]:
    """The rows of a table by their first cell; empty if the table is not there."""
    for section in results["sections"]:
        for found in section["tables"]:
            if found["id"] == table:
                return {row["arm"]["text"]: row for row in found["rows"]}
    return {}


def less(one: dict[str, Any], other: dict[str, Any]) -> Mark:
    """Whether one loss is lower than another by the rule over seeds."""
    ones, others = list(one.get("by_seed", {}).values()), list(other.get("by_seed", {}).values())
    if min(len(ones), len(others)) < 2:
        return "within noise"
    margin = 2 * math.hypot(one["standard_error"], other["standard_error"])
    if max(ones) < min(others) and other["value"] - one["value"] > margin:
        return "holds"
    if max(others) < min(ones) and one["value"] - other["value"] > margin:
        return "does not hold"
    return "within noise"


def positive(cell: dict[str, Any] | None) -> Mark:
    """Whether a difference is above zero by the rule over seeds, and by a digit that is shown."""
    if cell is None:
        return "within noise"
    values = list(cell.get("by_seed", {}).values())
    if len(values) < 2:
        return "within noise"
    margin = max(2 * cell["standard_error"], 10 ** -cell["digits"])
    if min(values) > 0 and cell["value"] > margin:
        return "holds"
    return "does not hold" if max(values) < 0 and cell["value"] < -margin else "within noise"


def longer(one: dict[str, Any], other: dict[str, Any]) -> Mark:
    """Whether one length is above another beyond the 95 % intervals of both."""
    low, high = one.get("low", one["value"]), one.get("high", one["value"])
    if low > other.get("high", other["value"]):
        return "holds"
    return "does not hold" if high < other.get("low", other["value"]) else "within noise"


def above(cell: dict[str, Any], limit: float) -> Mark:
    """Whether a mean over heads is above a limit by two standard errors."""
    margin = 2 * cell.get("standard_error", 0.0)
    return (
        "holds"
        if cell["value"] - margin > limit
        else "does not hold"
        if cell["value"] + margin < limit
        else "within noise"
    )


def apart(low: dict[str, Any], high: dict[str, Any]) -> Mark:
    """Whether one mean over heads is below another by two standard errors of the difference."""
    margin = 2 * math.hypot(low.get("standard_error", 0.0), high.get("standard_error", 0.0))
    if high["value"] - low["value"] > margin:
        return "holds"
    return "does not hold" if low["value"] - high["value"] > margin else "within noise"


def all_of(marks: list[Mark]) -> Mark:
    """A claim of several parts holds if all hold, and does not if one does not."""
    if "does not hold" in marks:
        return "does not hold"
    return "holds" if marks and all(mark == "holds" for mark in marks) else "within noise"


def shown(cell: dict[str, Any]) -> str:
    """`2.585 ± 0.004`."""
    value = f"{cell['value']:,.{cell['digits']}f}"
    value = value.removeprefix("-") if float(value.replace(",", "")) == 0 else value.replace("-", "−")
    return f"{value} ± {cell['standard_error']:.{cell['digits']}f}" if "standard_error" in cell else value


def interval(cell: dict[str, Any]) -> str:
    """`96 [80, 112]`."""
    value = f"{'≥ ' if cell.get('at_least') else ''}{cell['value']:,.0f}"
    return f"{value} [{cell['low']:,.0f}, {cell['high']:,.0f}]" if "low" in cell else value
