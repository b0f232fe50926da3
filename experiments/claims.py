"""The paper's claims in words, and the one rule that marks them.

A claim is a difference with a 95 % interval, positive if the claim is right, beside the paper's effect in percent. It
is marked by where the interval lies: ✓ above zero, ✗ below, ≈ includes it; – where this run cannot tell. A claim with
several differences has a mark for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from experiments.sections import Difference, Section

MARKS = {
    "✓": "the interval is above zero",
    "✗": "below zero",
    "≈": "includes zero",
    "–": "this run cannot tell",
}

TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CLAIMS: list[dict[str, str]] = TEXTS["claims"]
FINDINGS: dict[str, str] = TEXTS["sections"]
"""Finding of the paper by section of the report."""
UNITS: str = TEXTS["units"]
"""Meaning of the numbers in the report."""


def mark(row: Difference) -> str:
    """Return the mark for a difference; an interval without a lower or an upper end is open there."""
    if row.effect is None or row.untested:
        return "–"
    if row.low is None and row.high is None:
        return "–"
    if row.low is not None and row.low > 0:
        return "✓"
    if row.high is not None and row.high < 0:
        return "✗"
    return "≈"


def judge(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims as `results.json` has them, each with its differences and their marks in `rows`."""
    judged = []
    for claim in CLAIMS:
        rows = []
        for section in sections:
            for difference in section.differences:
                if difference.key.startswith(f"{claim['id']}/"):
                    row = asdict(difference)
                    row["mark"] = mark(difference)
                    rows.append(row)
        judged.append({**claim, "rows": rows})
    return judged
