"""Claims as the report words them: the rows of their tables, their counts, and a sentence for each that fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.sections import decimal, interval, percent

RULE = (
    "A claim rests on one part or several: differences with a 95 % interval, positive if the claim is right. A part "
    "holds if its whole interval is above zero. It does not hold if its whole interval is below zero or, in percent, "
    "below half of the paper’s effect; otherwise it is within noise. A claim holds if all of its parts do, does not "
    "hold if one part does not, and is not tested if this run cannot tell."
)
COLUMNS = (
    "A claim’s row shows the part that supports it least. Percent of losses: of the loss that should be higher. "
    "Margin: how far the interval would have to move to change the mark. Power: the chance to see the paper’s effect "
    "in percent, if it is true, with an interval of this width. So far: some runs are still to come."
)
SIGNS = {"holds": "✓", "does not hold": "✗", "within noise": "≈", "not tested": "–", "pending": "…"}
VERBS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "within noise": ("is within noise", "are within noise"),
    "not tested": ("is not tested", "are not tested"),
    "pending": ("is pending", "are pending"),
}


def mark_of(judged: Mapping[str, Any]) -> str:
    """Return the mark of a claim or of a part, `pending` where it has none yet."""
    return judged["mark"] or "pending"


def effect_text(judged: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of a claim or of a part as a row of a table shows them; those that it does not have are empty.

    Returns:
        `effect` with its unit, and its 95 % `interval`; `relative` and `relative_interval`, the same in percent;
        `theirs`, the paper's effect in percent; `by`, the margin of the mark; `power` in percent; `mark` with its sign.
    """
    name = mark_of(judged)
    text = dict.fromkeys(("effect", "interval", "relative", "relative_interval"), "")
    unit = f" {judged['unit']}" if judged["unit"] else ""
    if judged["effect"] is not None:
        low, high = judged["low"], judged["high"]
        size = (high - low) / 2 if low is not None and high is not None else abs(judged["effect"])
        most = 1 if judged["unit"] == "%" else 3
        digits = max(0, min(most, 1 - math.floor(math.log10(size or 1.0))))  # two of the interval's digits or three
        text["effect"] = decimal(judged["effect"], digits, signed=True) + unit
        text["interval"] = interval(low, high, digits, signed=True)
    if judged["relative"] is not None:
        of_percent = 1 if abs(judged["relative"]) < 100 else 0
        text["relative"] = percent(judged["relative"])
        text["relative_interval"] = interval(judged["relative_low"], judged["relative_high"], of_percent, signed=True)
    paper, power = judged["relative_paper"], judged["power"]
    return {
        **text,
        "theirs": "" if paper is None else percent(paper),
        "by": "" if judged["margin"] is None else f"by {_short(judged['margin'])}{unit}",
        "power": "" if power is None else f"{decimal(100 * power, 0)}\u00a0%",
        "mark": f"{SIGNS[name]} {name}",
    }


def claim_text(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return a claim of `results.json` as the table of claims shows it.

    Returns:
        Beside the fields of `effect_text`: `claim` in a sentence, `parts` that hold, as `2 of 3`.
    """
    parts = f"{claim['n_holding']} of {claim['n_parts']}" if claim["n_parts"] else ""
    text = effect_text(claim) | {"claim": claim["claim"], "parts": parts}
    if claim["mark"] and claim["state"] == "so far":
        text["mark"] += ", so far"
    return text


def part_rows(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table of parts: those of `effect_text`, the `number` of the claim, `title` and `name`."""
    rows = []
    for number, claim in enumerate(claims, 1):
        for part in claim["parts"]:
            text = effect_text(part) | {"number": str(number), "title": part["title"], "name": mark_of(part)}
            if part["pending"]:
                text["mark"] += f", {part['pending']} run{'s' if part['pending'] > 1 else ''} to come"
            rows.append(text)
    return rows


def counts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims have each mark, and how many parts hold.

    Example: `7 of 10 claims hold so far, 2 do not hold, 1 is pending; 23 of 31 parts hold`.
    """
    marks, n_parts = Counter(map(mark_of, claims)), sum(claim["n_parts"] for claim in claims)
    n_holding = sum(claim["n_holding"] for claim in claims)
    so_far = " so far" if any(claim["state"] != "final" for claim in claims) else ""
    first = f"{marks['holds']} of {len(claims)} claims hold{so_far}"
    others = [f"{marks[name]} {VERBS[name][marks[name] > 1]}" for name in SIGNS if marks[name] and name != "holds"]
    return f"{', '.join([first, *others])}; {n_holding} of {n_parts} parts hold"


def failures(claims: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str, str]]:
    """Return claim, mark and a sentence for every claim that does not hold, is within noise or is not tested."""
    named = ("does not hold", "within noise", "not tested")
    return [(c, c["mark"], c["sentence"] or f"{c['claim']}") for name in named for c in claims if c["mark"] == name]


def _short(value: float) -> str:
    """Format a margin with one digit or two that are not zero: 0.00042 -> 0.0004, 0.123 -> 0.12, 12.3 -> 12."""
    digits = 0 if value == 0 else max(0, min(6, (1 if value >= 0.1 else 0) - math.floor(math.log10(value))))
    return decimal(value, digits)
