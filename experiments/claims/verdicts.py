"""One rule for every claim, applied to the differences that a claim rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.report.cells import Number
from experiments.report.view import interval, number

Mark = Literal["holds", "does not hold", "within noise"]


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


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: its mark, and the part that decides it.

    Args:
        mark: holds, does not hold, or within noise.
        effect: difference of the part that decides, in `unit`; positive supports the claim.
        low, high: its 95 % interval; None where nothing was repeated, one of them None where the interval is open.
        smallest: smallest effect that this run could have seen: half the width of the interval, and not less than the
            step of a grid; None where an end is missing.
        unit: of the numbers above; None for a plain number.
        relative, relative_low, relative_high: the same in percent.
        relative_paper: the paper's effect in percent; None where it has none.
        part: title of the part that decides.
        evidence: all parts, in words.
    """

    mark: Mark
    effect: float
    low: float | None
    high: float | None
    smallest: float | None
    unit: str | None
    relative: float
    relative_low: float | None
    relative_high: float | None
    relative_paper: float | None
    part: str
    evidence: str


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


def verdict(parts: Sequence[ClaimPart]) -> Verdict:
    """Return the mark of the part that supports the claim least.

    With one part that does not hold, the claim does not; it holds if all parts do.
    """
    part = min(parts, key=_support)
    difference, relative = part.difference, part.relative
    low, high = difference.low, difference.high
    return Verdict(
        mark=mark_of(part),
        effect=difference.value,
        low=low,
        high=high,
        smallest=None if low is None or high is None else max((high - low) / 2, difference.step or 0.0),
        unit=part.unit,
        relative=relative.value,
        relative_low=relative.low,
        relative_high=relative.high,
        relative_paper=part.paper,
        part=part.title,
        evidence="; ".join(f"{part.title}: {shown(part.difference, part.unit)}" for part in parts),
    )


def _support(part: ClaimPart) -> tuple[int, float]:
    """Order of parts: those that do not hold, those within noise, those that hold; in each, the least in percent."""
    rank = {"does not hold": 0, "within noise": 1, "holds": 2}[mark_of(part)]
    end = part.relative.low
    return rank, part.relative.value if end is None else end


def shown(difference: Number, unit: str | None) -> str:
    """Format a difference: `+0.137 bpc [+0.120, +0.150]`."""
    text = number(difference.value, difference.digits, signed=True)
    text += f" {unit}" if unit else ""
    return " ".join([text, *filter(None, [interval(difference.low, difference.high, difference.digits, signed=True)])])
