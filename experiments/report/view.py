"""Tables as the HTML and the Markdown page show them: columns in groups, cells as text, values by seed."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from experiments.report.cells import Cell, Number, Text
from experiments.report.sections import Table

HEADINGS = {"label": "", "ours": "here", "paper": "paper"}
_MARKS = (
    "One rule for all: a claim rests on one difference or several, positive if the claim is right. It holds if every "
    "95 % interval lies above zero, even if the effect is small. It does not hold if one lies below zero, or if one "
    "that includes zero lies in percent below half of the effect in the paper: the run excludes even half of it. "
    "Otherwise it is within noise. Of several differences, the one that supports the claim least is shown. "
)
RULE = (
    f"{_MARKS}Intervals of losses are over seeds and blocks of 1,000 to 20,000 tokens of the test text, 30 or more if "
    "it has as many thousands, those of context lengths over positions, of speed over rounds, of attention over heads. "
    "An interval has no end on the side where a context length may be beyond those measured. The smallest visible "
    "effect is half the width of the interval, of context lengths at least one step of those measured."
)
FORMER_RULE = (  # of results that do not state theirs
    f"{_MARKS}Intervals of losses are over seeds and blocks of 1,000 tokens of the test text, those of context lengths "
    "over positions, of speed over rounds, of attention over heads. The smallest visible effect is half the width of "
    "the interval."
)
SIGNS = {"holds": "✓", "does not hold": "✗", "within noise": "≈"}
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories that a page cannot show


@dataclass(frozen=True)
class ColumnView:
    """Column as it is shown.

    Args:
        title: without unit.
        unit: of its numbers, or None.
        of: label, ours or paper.
        first: begins a group of columns of the same `of`.
    """

    title: str
    unit: str | None
    of: str
    first: bool

    @property
    def heading(self) -> str:
        """Group, title and unit in one line, for tables with a single header row."""
        text = ": ".join(part for part in (HEADINGS[self.of], self.title) if part)
        return f"{text} ({self.unit})" if self.unit else text


@dataclass(frozen=True)
class CellView:
    """Cell as it is shown.

    Args:
        text: with ±, interval and ≥, without unit.
        seeds: values by seed; empty where there are none.
    """

    text: str
    seeds: str = ""


@dataclass(frozen=True)
class TableView:
    """Table as it is shown.

    Args:
        id: of the table in `results.json`.
        caption: above the table.
        columns: those of the table; a column with differences is followed by one that shows them.
        groups: heading, `of` and number of columns of each group, in order.
        rows: a cell for each column.
        notes: of the table, then the meaning of ± and brackets.
        by_seed: header and rows of the values by seed, or None.
    """

    id: str
    caption: str
    columns: list[ColumnView]
    groups: list[tuple[str, str, int]]
    rows: list[list[CellView]]
    notes: list[str]
    by_seed: tuple[list[str], list[list[str]]] | None


def table_view(table: Table) -> TableView:
    """Return a table as it is shown."""
    seeds = _common_seeds(table)
    columns: list[ColumnView] = []
    sources: list[tuple[str, bool]] = []  # key of the column, and whether its differences are shown
    for column in table.columns:
        first = not columns or columns[-1].of != column.of
        columns.append(ColumnView(column.title, column.unit, column.of, first))
        sources.append((column.key, False))
        cells = [row[column.key] for row in table.rows.values()]
        if any(isinstance(cell, Number) and cell.difference is not None for cell in cells):
            title = f"{column.title}: difference" if column.title else "difference"
            columns.append(ColumnView(title, column.unit, column.of, False))
            sources.append((column.key, True))
    return TableView(
        id=table.id,
        caption=table.caption,
        columns=columns,
        groups=[(HEADINGS[of], of, len(list(group))) for of, group in groupby(columns, lambda column: column.of)],
        rows=[
            [_difference(row[key]) if difference else _cell(row[key], seeds) for key, difference in sources]
            for row in table.rows.values()
        ],
        notes=[*table.notes, *_explanations(table, seeds)],
        by_seed=_by_seed(table),
    )


def number(value: float, digits: int, signed: bool = False) -> str:
    """Format a number: 1234.5 -> 1,234.5, with a minus sign (−); `signed` adds a plus sign."""
    text = f"{value:{'+' if signed else ''},.{int(digits)}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")  # zero after rounding
    return text.replace("-", "−")


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


@dataclass(frozen=True)
class ClaimView:
    """Claim as the table of claims shows it.

    Args:
        claim: in a sentence.
        effect: with its unit; for files of older versions the evidence.
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


def claim_view(claim: Mapping[str, Any]) -> ClaimView:
    """Return a claim as the table of claims shows it."""
    mark = f"{SIGNS[claim['mark']]} {claim['mark']}"
    if "effect" not in claim:
        return ClaimView(claim["claim"], claim["evidence"], "", "", "", "", "", mark)
    unit = f" {claim['unit']}" if claim["unit"] else ""
    digits = _digits(claim["effect"], claim["smallest"])
    relative, paper = claim["relative"], claim["relative_paper"]
    return ClaimView(
        claim=claim["claim"],
        effect=number(claim["effect"], digits, signed=True) + unit,
        interval=interval(claim["low"], claim["high"], digits, signed=True),
        smallest="" if claim["smallest"] is None else number(claim["smallest"], digits) + unit,
        relative=_percent(relative),
        relative_interval=interval(
            claim["relative_low"], claim["relative_high"], 1 if abs(relative) < 100 else 0, signed=True
        ),
        theirs="" if paper is None else _percent(paper),
        mark=mark,
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
        named = [_named(claim) for claim in claims if claim["mark"] == mark]
        if named:
            counted = f"{len(named)} of {len(claims)} claims {one if len(named) == 1 else several}"
            lines.append((mark, counted, "; ".join(named)))
    return lines


def _named(claim: Mapping[str, Any]) -> str:
    """Short name of a claim and, where it has one, its effect beside the paper's."""
    if "effect" not in claim:
        return str(claim["claim"]).rstrip(".")
    paper = claim["relative_paper"]
    effect = _percent(claim["relative"]) + ("" if paper is None else f"; paper {_percent(paper)}")
    return f"{claim.get('short', claim['claim']).rstrip('.')} ({effect})"


def interval(low: float | None, high: float | None, digits: int, *, signed: bool = False) -> str:
    """Format an interval, `[−0.04, 0.40]`; with one end, `[−∞, −0.04]`; empty without ends."""
    if low is None and high is None:
        return ""
    while digits < 6 and any(value and not round(value, digits) for value in (low, high)):
        digits += 1  # on which side of zero an end lies must be visible
    ends = [
        sign + "∞" if end is None else number(end, digits, signed=signed) for sign, end in (("−", low), ("+", high))
    ]
    return f"[{', '.join(ends)}]"


def _percent(value: float) -> str:
    return f"{number(value, 1 if abs(value) < 100 else 0, signed=True)}\u00a0%"


def _digits(effect: float, smallest: float | None) -> int:
    """Decimals that show the interval in two digits or three."""
    size = smallest or abs(effect) or 1.0
    return max(0, min(4, 1 - math.floor(math.log10(size))))


def _numbers(table: Table) -> list[Number]:
    return [cell for row in table.rows.values() for cell in row.values() if isinstance(cell, Number)]


def _common_seeds(table: Table) -> tuple[str, ...]:
    """Seeds that most means of the table are over."""
    seeds = Counter(tuple(sorted(cell.by_seed, key=int)) for cell in _numbers(table) if cell.by_seed)
    return seeds.most_common(1)[0][0] if seeds else ()


def _cell(cell: Cell, common_seeds: tuple[str, ...]) -> CellView:
    if cell is None:
        return CellView("")
    if isinstance(cell, Text):
        return CellView(visible(cell.text))
    return CellView(_number_text(cell, common_seeds), _seeds_text(cell))


def _difference(cell: Cell) -> CellView:
    if not isinstance(cell, Number) or cell.difference is None:
        return CellView("")
    return CellView(number(cell.difference, cell.digits, signed=True))


def _number_text(cell: Number, common_seeds: tuple[str, ...]) -> str:
    text = ("≥ " if cell.at_least else "") + number(cell.value, cell.digits)
    if cell.standard_error is not None:
        text += f" ± {number(cell.standard_error, cell.digits)}"
    if ends := interval(cell.low, cell.high, cell.digits):
        text += f" {ends}"
    if not cell.by_seed or set(cell.by_seed) == set(common_seeds):
        return text
    return f"{text} (n = {len(cell.by_seed)})"


def _seeds_text(cell: Number) -> str:
    seeds = cell.by_seed or {}
    return "; ".join(f"seed {seed}: {number(seeds[seed], cell.digits)}" for seed in sorted(seeds, key=int))


def _explanations(table: Table, common_seeds: tuple[str, ...]) -> list[str]:
    """Meaning of the signs in the cells of this table."""
    cells = _numbers(table)
    seeds = f"seed{'s' if len(common_seeds) > 1 else ''} {', '.join(common_seeds)} (n = {len(common_seeds)})"
    texts = []
    if len(common_seeds) > 1:
        texts.append(f"Here: mean ± standard error over {seeds}; a cell with other seeds has its own n.")
    elif common_seeds:
        texts.append(f"Here: {seeds}, so without a standard error; a cell with more seeds has its own n.")
    if any(cell.low is not None or cell.high is not None for cell in cells):
        texts.append("In brackets: a 95 % interval.")
    if any(cell.at_least for cell in cells):
        texts.append("≥: as far as was measured; the value may lie beyond.")
    return texts


def _by_seed(table: Table) -> tuple[list[str], list[list[str]]] | None:
    """Header and rows of the values by seed: labels in one column, then each column that has such values."""
    labels = [column.key for column in table.columns if column.of == "label"]
    with_seeds = {
        column.key: ColumnView(column.title, column.unit, column.of, False).heading
        for column in table.columns
        if any(_cell(row[column.key], ()).seeds for row in table.rows.values())
    }
    if not with_seeds:
        return None
    rows = []
    for row in table.rows.values():
        values = [_cell(row[key], ()).seeds for key in with_seeds]
        if any(values):
            rows.append([", ".join(filter(None, (_cell(row[key], ()).text for key in labels))), *values])
    return ["", *with_seeds.values()], rows
