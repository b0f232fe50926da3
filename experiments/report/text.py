"""Numbers, cells, notes and claims of the report as both pages write them."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.sections import Cell, Number, Table, Text

RULE = (
    "One rule for all: a claim rests on one difference or several, positive if the claim is right. It holds if every "
    "95 % interval lies above zero, even if the effect is small. It does not hold if one lies below zero, or if one "
    "that includes zero lies in percent below half of the effect in the paper: the run excludes even half of it. "
    "Otherwise it is within noise. Of several differences, the one that supports the claim least is shown. "
    "Intervals of losses are over seeds and blocks of 1,000 to 20,000 tokens of the test text, 30 or more if "
    "it has as many thousands, those of context lengths over positions, of speed over rounds, of attention over heads. "
    "An interval has no end on the side where a context length may be beyond those measured. The smallest visible "
    "effect is half the width of the interval, of context lengths at least one step of those measured."
)
SIGNS = {"holds": "✓", "does not hold": "✗", "within noise": "≈"}
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories that a page cannot show


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
    """Return a cell with ±, interval and ≥, without its unit; with its count n if it has other seeds than `common`."""
    if not isinstance(found, Number):
        return visible(found.text) if isinstance(found, Text) else ""
    text = ("≥ " if found.at_least else "") + decimal(found.value, found.digits)
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


@dataclass(frozen=True)
class ClaimText:
    """Claim as the table of claims shows it.

    Args:
        claim: in a sentence.
        effect: with its unit.
        interval: 95 % interval of the effect, in its unit; empty where there is none.
        smallest: smallest effect that the run could have seen, with its unit.
        relative: effect in percent.
        relative_interval: its 95 % interval in percent.
        theirs: the paper's effect in percent; empty where it has none.
        mark: with its sign.
    """

    claim: str
    effect: str
    interval: str
    smallest: str
    relative: str
    relative_interval: str
    theirs: str
    mark: str


def claim_text(claim: Mapping[str, Any]) -> ClaimText:
    """Return a claim of `results.json` as the table of claims shows it."""
    unit = f" {claim['unit']}" if claim["unit"] else ""
    size = claim["smallest"] or abs(claim["effect"]) or 1.0
    digits = max(0, min(4, 1 - math.floor(math.log10(size))))  # two of the interval's digits or three
    relative, paper = claim["relative"], claim["relative_paper"]
    return ClaimText(
        claim=claim["claim"],
        effect=decimal(claim["effect"], digits, signed=True) + unit,
        interval=interval(claim["low"], claim["high"], digits, signed=True),
        smallest="" if claim["smallest"] is None else decimal(claim["smallest"], digits) + unit,
        relative=percent(relative),
        relative_interval=interval(
            claim["relative_low"], claim["relative_high"], 1 if abs(relative) < 100 else 0, signed=True
        ),
        theirs="" if paper is None else percent(paper),
        mark=f"{SIGNS[claim['mark']]} {claim['mark']}",
    )


def summary(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return mark, count in words and claims with their effects, a line for each mark that a claim has."""
    words = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not hold", "do not hold"),
        "within noise": ("is within noise", "are within noise"),
    }
    lines = []
    for mark, (one, several) in words.items():
        named = []
        for claim in claims:
            if claim["mark"] == mark:
                paper = claim["relative_paper"]
                effect = percent(claim["relative"]) + ("" if paper is None else f"; paper {percent(paper)}")
                named.append(f"{claim['short'].rstrip('.')} ({effect})")
        if named:
            counted = f"{len(named)} of {len(claims)} claims {one if len(named) == 1 else several}"
            lines.append((mark, counted, "; ".join(named)))
    return lines
