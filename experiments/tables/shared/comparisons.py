"""Comparisons of a section: differences that claims are judged by, and their table.

A difference is positive where it supports the claim. The key of a comparison is `CLAIM/PART`; comparisons that no claim
needs have a key of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.cells import Number, number
from experiments.report.cells import Text as TextCell
from experiments.report.sections import Table, label, ours, paper
from experiments.tables.shared.intervals import Interval


@dataclass(frozen=True)
class Comparison:
    """One difference with its 95 % interval.

    Args:
        key: of its row; begins with the claim's id and a slash.
        title: names both sides.
        difference: in the table's unit; positive supports the claim.
        relative: the same in percent of one side: for losses of the one that should be worse.
        paper: the paper's difference in percent; None where it has none.
        tokens: that both sides were scored on; None where tokens are not what was measured.
        step: of the grid on which both sides were measured, in the table's unit; None for a continuous measure.
    """

    key: str
    title: str
    difference: Interval
    relative: Interval
    paper: float | None = None
    tokens: int | None = None
    step: float | None = None


def comparisons_table(name: str, title: str, unit: str | None, digits: int, found: Sequence[Comparison]) -> Table:
    """Return the table of a section's comparisons; with a column of tokens where one of them counts tokens."""
    counted = any(comparison.tokens is not None for comparison in found)
    return Table(
        id=f"{name}_differences",
        caption=f"{title.partition(':')[0]}: differences with 95 % intervals",
        columns=(
            label("arm", "difference of"),
            ours("difference", "difference", unit),
            ours("relative", "relative", "%"),
            *([ours("tokens", "both sides scored on", "tokens")] if counted else []),
            paper("paper", "relative", "%"),
        ),
        rows={
            comparison.key: {
                "arm": TextCell(comparison.title),
                "difference": cell(comparison.difference, digits, comparison.step),
                "relative": cell(comparison.relative, 1),
                **({"tokens": number(comparison.tokens, 0)} if counted else {}),
                "paper": number(comparison.paper, 1),
            }
            for comparison in found
        },
    )


def cell(interval: Interval, digits: int, step: float | None = None) -> Number:
    """Return an interval as a cell."""
    return Number(interval.effect, digits, low=interval.low, high=interval.high, step=step)


def percent_of_loss(worse_ppl: float, better_ppl: float) -> float:
    """Return a difference between perplexities of the paper in percent of the worse loss: 100 · (ln w - ln b) / ln w.

    Losses in nats can be compared in relative terms whatever the tokens are; perplexities of words and bits of bytes
    cannot.
    """
    return 100 * (math.log(worse_ppl) - math.log(better_ppl)) / math.log(worse_ppl)
