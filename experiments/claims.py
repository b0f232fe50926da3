"""Claims of the paper and beyond it, all judged by one rule from the tables of the report and nothing else.

Every claim rests on one difference or several, with 95 % intervals and signs so that positive supports the claim. The
rule: a claim holds if the whole interval is above zero. It does not hold if the interval is below zero, or in percent
below half of the paper's effect. Otherwise it is within noise. A claim of several parts holds if all do, and does not
hold if one does not. A difference that says nothing about its claim, as its section finds, is not tested.

The claims are in `claims.yaml`. Their differences are rows of the sections' `…_differences` tables whose keys begin
with the claim's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import yaml

from experiments.report.sections import Number, Section, Table, Text, decimal, interval

Mark = Literal["holds", "does not hold", "within noise", "not tested"]
WEAKEST_FIRST: tuple[Mark, ...] = ("does not hold", "within noise", "not tested", "holds")
NORMAL = NormalDist()


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
        key: of its row.
        title: names both sides.
        difference: with its 95 % interval; None while a side has no finished run.
        relative: the same in percent.
        paper: the paper's difference in percent; None where it has none.
        unit: of the difference; None for a plain number.
        pending: runs of both sides that are not finished.
        untested: why it says nothing about the claim, in a sentence; empty where it does.
    """

    key: str
    title: str
    difference: Number | None
    relative: Number | None
    paper: float | None
    unit: str | None
    pending: int = 0
    untested: str = ""

    @property
    def half_of_paper(self) -> float:
        """Value in `unit` below which an interval refutes the part: half of the paper's effect, and not below 0.

        The factor from percent to `unit` is that of the effect or an end, whichever is farthest from 0.
        """
        if self.paper is None or self.difference is None or self.relative is None:
            return 0.0
        pairs = [(getattr(self.relative, name), getattr(self.difference, name)) for name in ("value", "low", "high")]
        percent, in_unit = max((pair for pair in pairs if pair[0] is not None), key=lambda pair: abs(pair[0]))
        return max(0.0, self.paper / 2 * in_unit / percent) if percent else 0.0


def judged(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims whose sections are in the report, with their verdicts, as `results.json` has them.

    A claim is pending if its section has no table of differences yet, and left out if that table has no row of it.
    """
    tables = {table.id: table for section in sections for table in section.tables}
    pending = {f"{section.id}_differences" for section in sections} - set(tables)
    found = []
    for claim in CLAIMS:
        name = claim.tables[-1]
        if (parts := _parts(claim, tables.get(name))) or name in pending:
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
            number = {name: found for name, found in row.items() if isinstance(found, Number)}
            paper, pending, untested = number.get("paper"), number.get("pending"), row.get("untested")
            parts.append(
                ClaimPart(
                    key,
                    table.title(key),
                    number.get("difference"),
                    number.get("relative"),
                    paper.value if paper else None,
                    unit,
                    int(pending.value) if pending else 0,
                    untested.text if isinstance(untested, Text) else "",
                )
            )
    return parts


def mark_of(part: ClaimPart) -> Mark | None:
    """Return the mark of one difference; None while it has no value.

    It holds if its whole interval lies above zero. It does not hold if the interval lies below zero, or if the interval
    in percent lies below half of the paper's effect. Otherwise it is within noise.
    """
    difference, relative = part.difference, part.relative
    if difference is None or relative is None:
        return None
    if part.untested:
        return "not tested"
    if difference.low is not None and difference.low > 0:
        return "holds"
    if difference.high is not None and difference.high < 0:
        return "does not hold"
    if part.paper is not None and relative.high is not None and relative.high < part.paper / 2:
        return "does not hold"
    return "within noise"


def margin(part: ClaimPart) -> float | None:
    """Return how far the end of the interval that decides the mark is from the boundary, in `unit` and never below 0.

        holds:          low - 0
        does not hold:  max(0, paper / 2) - high
        within noise:   min(0 - low, high - max(0, paper / 2)), the smallest change that gives another mark

    None without a mark of the interval or without an end.
    """
    mark, difference = mark_of(part), part.difference
    if difference is None or mark == "not tested":
        return None
    from_zero = None if difference.low is None else abs(difference.low)
    from_half = None if difference.high is None else abs(difference.high - part.half_of_paper)
    if mark in ("holds", "does not hold"):
        return from_zero if mark == "holds" else from_half
    return min((distance for distance in (from_zero, from_half) if distance is not None), default=None)


def power(part: ClaimPart) -> float | None:
    """Return the chance that the interval would lie above 0 if the paper's effect in percent were true.

        P(low > 0) = Φ(1.96 · (paper / half - 1)),     half = (high - low) / 2 in percent

    The effect is then normally distributed around the paper's, with half / 1.96 as its standard deviation. None where
    the paper has no number or the interval no two ends.
    """
    found = part.relative
    if part.paper is None or found is None or found.low is None or found.high is None:
        return None
    half = (found.high - found.low) / 2
    return NORMAL.cdf(NORMAL.inv_cdf(0.975) * (part.paper / half - 1)) if half else float(part.paper > 0)


def verdict(parts: Sequence[ClaimPart]) -> dict[str, Any]:
    """Return the verdict on a claim: that of the part that supports it least.

    With one part that does not hold, the claim does not; it holds if all parts do.

    Returns:
        `mark`; `state`: final, "so far" if runs are missing, or pending if no part has a value; `effect`, `low` and
        `high` of the deciding part in `unit`, positive as the claim says; the same in percent as `relative`,
        `relative_low` and `relative_high`, and the paper's effect as `relative_paper`; its `margin` and `power`; its
        title as `part`; all `parts`, their number `n_parts`, and `n_holding` of them that hold; a
        `sentence` if the claim does not hold; all parts in words as `evidence`. An end is None where nothing was
        repeated, or where it is open; all numbers of a part are None while it has no value.
    """
    rows = [_row(part) for part in parts]
    found = [(part, row) for part, row in zip(parts, rows, strict=True) if row["mark"]]
    weakest, row = min(found, key=_support, default=(None, dict.fromkeys(OF_DECIDING_PART)))
    n_holding = sum(row["mark"] == "holds" for row in rows)
    state = "so far" if len(found) < len(rows) or any(part.pending for part in parts) else "final"
    return {
        **{name: row[name] for name in OF_DECIDING_PART},
        "state": state if found else "pending",
        "part": weakest.title if weakest else "",
        "parts": rows,
        "n_parts": len(rows),
        "n_holding": n_holding,
        "sentence": sentence(weakest, len(rows), n_holding) if weakest else "",
        "evidence": "; ".join(f"{part.title}: {shown(part.difference, part.unit)}" for part in parts),
    }


NUMBERS = ("effect", "low", "high", "relative", "relative_low", "relative_high", "margin", "power")
OF_DECIDING_PART = ("mark", "unit", "relative_paper", *NUMBERS)


def _row(part: ClaimPart) -> dict[str, Any]:
    """Entry of a part under `parts`."""
    row = dict.fromkeys(NUMBERS) | {name: getattr(part, name) for name in ("key", "title", "unit", "pending")}
    row |= {"relative_paper": part.paper, "mark": mark_of(part), "margin": margin(part), "power": power(part)}
    if (found := part.difference) and (percent := part.relative):
        row |= {"effect": found.value, "low": found.low, "high": found.high}
        row |= {"relative": percent.value, "relative_low": percent.low, "relative_high": percent.high}
    return row


def _support(found: tuple[ClaimPart, dict[str, Any]]) -> tuple[int, float]:
    """Order of parts by mark; in each mark, the least in percent first."""
    row, end = found[1], found[1]["relative_low"]
    return WEAKEST_FIRST.index(row["mark"]), row["relative"] if end is None else end


def sentence(part: ClaimPart, n_parts: int, n_holding: int) -> str:
    """Return what the deciding part of a claim that does not hold found, in plain words; empty if the claim holds."""
    mark, difference, chance = mark_of(part), part.difference, power(part)
    if mark == "holds" or difference is None:
        return ""
    found = shown(difference, part.unit)
    if mark == "not tested":
        words = part.untested
    elif mark == "does not hold" and difference.high is not None and difference.high < 0:
        words = f"The effect has the opposite sign: {found}."
    elif mark == "does not hold":
        half, digits = part.half_of_paper, difference.digits
        while digits < 6 and difference.high is not None and round(half, digits) == round(difference.high, digits):
            digits += 1  # the end must be seen to lie below
        found, limit = shown(replace(difference, digits=digits), part.unit), decimal(half, digits, signed=True)
        words = f"The interval ends below half of the paper’s effect: {found}; half is {limit}."
    elif difference.value == 0 and difference.low is None and difference.high is None:
        words = f"The run cannot tell: {found} in every run."
    elif difference.low is None and difference.high is None:
        words = f"The run cannot tell: {found}, and nothing was repeated that would show how much chance changes it."
    elif chance is not None:
        words = f"The run cannot tell: {found}; the chance to see the paper’s effect was {100 * chance:.0f} %."
    else:
        words = f"The run cannot tell: {found}."
    return words if n_parts == 1 else f"{n_holding} of {n_parts} parts hold. Weakest: {part.title}. {words}"


def shown(difference: Number | None, unit: str | None) -> str:
    """Format a difference: `+0.137 bpc [+0.120, +0.150]`."""
    if difference is None:
        return "to come"
    text = decimal(difference.value, difference.digits, signed=True)
    text += f" {unit}" if unit else ""
    return " ".join([text, *filter(None, [interval(difference.low, difference.high, difference.digits, signed=True)])])


CLAIMS = [
    Claim(name, **stated) for name, stated in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
]
