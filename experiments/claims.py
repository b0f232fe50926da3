"""Claims of the paper and beyond it, all judged by one rule from the tables of the report and nothing else.

Every claim rests on one difference or several, with 95 % intervals and signs so that positive supports the claim. The
rule: a claim holds if the whole interval is above zero. It does not hold if the interval is below zero, or in percent
below half of the paper's effect. Otherwise it is within noise. A claim of several parts holds if all do, and does not
hold if one does not.

The claims are in `claims.yaml`. Their differences are rows of the sections' `…_differences` tables whose keys begin
with the claim's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from experiments.report.sections import Number, Section, Table, decimal, interval

Mark = Literal["holds", "does not hold", "within noise"]


@dataclass(frozen=True)
class Claim:
    """Claim of the paper, or one that goes beyond it.

    Args:
        id: unique; the keys of its differences begin with it.
        short: in a few words, for the picture.
        panel: of the picture, with others of the same unit: losses, lengths, speed or attention.
        claim: in a sentence.
        paper: its place and numbers in the paper; beyond the paper, where it comes from.
        rule: differences that it rests on, in words.
        tables: ids of the tables it is judged from; the last one has the differences.
    """

    id: str
    short: str
    panel: str
    claim: str
    paper: str
    rule: str
    tables: list[str]


@dataclass(frozen=True)
class ClaimPart:
    """One difference behind a claim; positive supports it.

    Args:
        title: names both sides.
        difference: with its 95 % interval.
        relative: the same in percent.
        paper: the paper's difference in percent; None where it has none.
        unit: of the difference; None for a plain number.
    """

    title: str
    difference: Number
    relative: Number
    paper: float | None
    unit: str | None


def judged(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims whose differences are in the report, with their verdicts, as `results.json` has them."""
    tables = {table.id: table for section in sections for table in section.tables}
    found = []
    for claim in CLAIMS:
        if parts := _parts(claim, tables.get(claim.tables[-1])):
            present = [name for name in claim.tables if name in tables]
            found.append({**vars(claim), **verdict(parts), "tables": present})
    return found


def _parts(claim: Claim, table: Table | None) -> list[ClaimPart]:
    if table is None:
        return []
    unit = next(column.unit for column in table.columns if column.key == "difference")
    parts = []
    for key, row in table.rows.items():
        if key.startswith(f"{claim.id}/"):
            difference, relative, paper = table.number(key, "difference"), table.number(key, "relative"), row["paper"]
            theirs = paper.value if isinstance(paper, Number) else None
            parts.append(ClaimPart(table.title(key), difference, relative, theirs, unit))
    return parts


def mark_of(part: ClaimPart) -> Mark:
    """Return the mark of one difference.

    It holds if its whole interval lies above zero. It does not hold if the interval lies below zero, or if the interval
    in percent lies below half of the paper's effect. Otherwise it is within noise.
    """
    difference, relative = part.difference, part.relative
    if difference.low is not None and difference.low > 0:
        return "holds"
    if difference.high is not None and difference.high < 0:
        return "does not hold"
    if part.paper is not None and relative.high is not None and relative.high < part.paper / 2:
        return "does not hold"
    return "within noise"


def verdict(parts: Sequence[ClaimPart]) -> dict[str, Any]:
    """Return the verdict on a claim: that of the part that supports it least.

    With one part that does not hold, the claim does not; it holds if all parts do.

    Returns:
        `mark`; `effect`, `low` and `high` of that part in `unit`, positive as the claim says, and the `smallest` effect
        that this run could have seen: half the width of the interval, and not less than the step of a grid; the same
        in percent as `relative`, `relative_low` and `relative_high`, and the paper's effect as `relative_paper`; its
        title as `part`; all parts in words as `evidence`. An end is None where nothing was repeated, or where it is
        open.
    """
    part = min(parts, key=_support)
    difference, relative = part.difference, part.relative
    low, high = difference.low, difference.high
    return {
        "mark": mark_of(part),
        "effect": difference.value,
        "low": low,
        "high": high,
        "smallest": None if low is None or high is None else max((high - low) / 2, difference.step or 0.0),
        "unit": part.unit,
        "relative": relative.value,
        "relative_low": relative.low,
        "relative_high": relative.high,
        "relative_paper": part.paper,
        "part": part.title,
        "evidence": "; ".join(f"{part.title}: {shown(part.difference, part.unit)}" for part in parts),
    }


def _support(part: ClaimPart) -> tuple[int, float]:
    """Order of parts: those that do not hold, those within noise, those that hold; in each, the least in percent."""
    rank = {"does not hold": 0, "within noise": 1, "holds": 2}[mark_of(part)]
    end = part.relative.low
    return rank, part.relative.value if end is None else end


def shown(difference: Number, unit: str | None) -> str:
    """Format a difference: `+0.137 bpc [+0.120, +0.150]`."""
    text = decimal(difference.value, difference.digits, signed=True)
    text += f" {unit}" if unit else ""
    return " ".join([text, *filter(None, [interval(difference.low, difference.high, difference.digits, signed=True)])])


CLAIMS = [
    Claim(name, **stated) for name, stated in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
]
