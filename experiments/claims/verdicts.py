"""Verdicts on claims: which cells of which tables a claim compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from experiments.claims.rules import Mark, above, all_of, apart, less, longer, positive
from experiments.report.cells import Cell, Number
from experiments.report.sections import Table
from experiments.tables.arms import ENCODINGS, Arm
from experiments.tables.table_8 import GROUPS, row_key

NEARLY_UNIFORM = 0.9
LONGER_ATTENTION = [Arm(), Arm(True, "shaw"), *(Arm(False, name, "half") for name in ("shaw", "absolute", "al_rfou"))]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim.

    Args:
        mark: holds, does not hold, or within noise.
        evidence: numbers behind the mark, in words.
    """

    mark: Mark
    evidence: str


Tables: TypeAlias = Mapping[str, Table]
"""Tables of the report by id."""
Judge: TypeAlias = Callable[[Tables], Verdict]


def lower_loss(table: str, column: str, pairs: Sequence[tuple[Arm, Arm]]) -> Judge:
    """Return a judge of pairs of arms: the first of each pair must have the lower loss."""

    def judge(tables: Tables) -> Verdict:
        found = tables[table]
        marks: list[Mark] = []
        evidence = []
        for better, worse in pairs:
            one, other = found.number(better.key, column), found.number(worse.key, column)
            marks.append(less(one, other))
            names = found.title(better.key), found.title(worse.key)
            evidence.append(f"{_shown(one)} ({names[0]}) against {_shown(other)} ({names[1]}): {marks[-1]}")
        return Verdict(all_of(marks), "; ".join(evidence))

    return judge


def only_ours_gains(tables: Tables) -> Verdict:
    """Judge whether only the relative encoding gains from attention longer than training's."""
    rows = tables["table_6"].rows
    ours, *others = (rows[arm.key]["beyond"] for arm in LONGER_ATTENTION)
    marks = [positive(ours)]
    for other in others:
        if isinstance(ours, Number) and isinstance(other, Number):
            marks.append("does not hold" if positive(other) == "holds" else less(other, ours))
    evidence = [f"{arm.title}: {_shown(rows[arm.key]['beyond'])}" for arm in LONGER_ATTENTION]
    return Verdict(all_of(marks), "; ".join(evidence))


def half_loss_is_better(tables: Tables) -> Verdict:
    """Judge whether both absolute encodings have a lower loss with the half loss than with the full loss."""
    marks: list[Mark] = []
    evidence = []
    for encoding in ("absolute", "al_rfou"):
        half = tables["table_6"].number(Arm(False, encoding, "half").key, "init")
        full = tables["table_6_full_loss"].number(Arm(False, encoding, "full").key, "init")
        marks.append(less(half, full))
        evidence.append(f"{ENCODINGS[encoding]}: half {_shown(half)}, full {_shown(full)} ({marks[-1]})")
    return Verdict(all_of(marks), "; ".join(evidence))


def longest_context(tables: Tables) -> Verdict:
    """Judge whether Transformer-XL has the longest RECL of each group at r = 0.1."""
    marks: list[Mark] = []
    evidence = []
    for group, members in GROUPS.items():
        lengths = {name: tables["table_8"].number(row_key(group, arm), "r0.1") for name, arm in members.items()}
        first, *others = lengths.values()
        marks += [longer(first, other) for other in others]
        evidence.append(", ".join(f"{name} {_interval(length)}" for name, length in lengths.items()))
    return Verdict(all_of(marks), "; ".join(evidence))


def speed_up_grows(tables: Tables) -> Verdict:
    """Judge whether state reuse is faster at every length, and by a larger factor at longer ones."""
    table = tables["table_9"]
    marks: list[Mark] = []
    evidence = []
    for level in dict.fromkeys(table.title(row) for row in table.rows):
        rows = [row for row in table.rows if table.title(row) == level]
        rows.sort(key=lambda row: table.number(row, "length").value)
        low, high, median = ([table.number(row, key).value for row in rows] for key in ("lowest", "highest", "hidden"))
        marks.append("holds" if low[0] > 1 else "does not hold" if high[0] < 1 else "within noise")
        marks.append("holds" if low[-1] > high[0] else "does not hold" if high[-1] < low[0] else "within noise")
        marks += ["holds" if after > before else "within noise" for before, after in pairwise(median)]
        factors = (f"{_shown(table.number(row, 'hidden'))} × at {_shown(table.number(row, 'length'))}" for row in rows)
        evidence.append(f"{level}: {', '.join(factors)}")
    return Verdict(all_of(marks), "; ".join(evidence))


def terms_look_as_described(tables: Tables) -> Verdict:
    """Judge whether (a) is nearly uniform, (b) is like all terms, (d) prefers near tokens but is flatter."""
    table = tables["figures_5_to_7"]
    if not {"all", "a", "b", "d"} <= set(table.rows):
        return Verdict("within noise", "a term is missing")
    at = table.number
    marks = {
        "(a) nearly uniform": above(at("a", "flatness"), NEARLY_UNIFORM),
        "(b) nearer to the whole than (a)": apart(at("b", "unlike"), at("a", "unlike")),
        "than (d)": apart(at("b", "unlike"), at("d", "unlike")),
        "(d) nearer tokens than (a)": apart(at("d", "distance"), at("a", "distance")),
        "(d) flatter": apart(at("all", "flatness"), at("d", "flatness")),
    }
    return Verdict(all_of(list(marks.values())), "; ".join(f"{part}: {mark}" for part, mark in marks.items()))


def _shown(cell: Cell) -> str:
    """Format a number: `2.585 ± 0.004`."""
    if not isinstance(cell, Number):
        return "none"
    value = f"{cell.value:,.{cell.digits}f}"
    value = value.removeprefix("-") if float(value.replace(",", "")) == 0 else value.replace("-", "−")
    return value if cell.standard_error is None else f"{value} ± {cell.standard_error:.{cell.digits}f}"


def _interval(cell: Number) -> str:
    """Format a length: `96 [80, 112]`."""
    value = f"{'≥ ' if cell.at_least else ''}{cell.value:,.0f}"
    return value if cell.low is None or cell.high is None else f"{value} [{cell.low:,.0f}, {cell.high:,.0f}]"
