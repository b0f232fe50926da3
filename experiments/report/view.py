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
RULE = (
    "Every claim rests on one difference or several, with a 95 % interval over seeds and blocks of 1,000 tokens of the "
    "test text (over positions for context lengths, rounds for speed, heads for attention), positive as the paper "
    "says. A "
    "claim holds if the whole interval is above zero, does not hold if it is below, and is otherwise within noise; a "
    "claim of several parts holds if all do."
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


def mark_counts(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return the number of claims by mark, best mark first, without marks that no claim has."""
    counts = Counter(claim["mark"] for claim in claims)
    return [(mark, counts[mark]) for mark in SIGNS if counts[mark]]


@dataclass(frozen=True)
class ClaimView:
    """Claim as the table of claims shows it.

    Args:
        claim: in a sentence.
        paper: place and numbers in the paper.
        here: effect with its interval, in the unit and in percent; for files of older versions the evidence.
        smallest: smallest effect that the run could have seen, with its unit.
        mark: with its sign.
    """

    claim: str
    paper: str
    here: str
    smallest: str
    mark: str


def claim_view(claim: Mapping[str, Any]) -> ClaimView:
    """Return a claim as the table of claims shows it."""
    mark = f"{SIGNS[claim['mark']]} {claim['mark']}"
    if "effect" not in claim:
        return ClaimView(claim["claim"], claim["paper"], claim["evidence"], "", mark)
    unit = f" {claim['unit']}" if claim["unit"] else ""
    digits = _digits(claim["effect"], claim["smallest"])
    text = number(claim["effect"], digits, signed=True) + unit
    smallest = ""
    if claim["smallest"] is not None:
        text += f" [{number(claim['low'], digits, signed=True)}, {number(claim['high'], digits, signed=True)}]"
        smallest = number(claim["smallest"], digits) + unit
    return ClaimView(claim["claim"], claim["paper"], f"{text}, {_percent(claim['relative'])}", smallest, mark)


def summary(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return one paragraph made from the marks: how many claims have each, and their effects."""
    sentences = []
    for mark, count in mark_counts(claims):
        verb = {
            "holds": "holds" if count == 1 else "hold",
            "does not hold": "does not hold" if count == 1 else "do not hold",
        }
        named = [_named(claim) for claim in claims if claim["mark"] == mark]
        noise = "is within noise" if count == 1 else "are within noise"
        sentences.append(f"{count} of {len(claims)} claims {verb.get(mark, noise)}: {'; '.join(named)}.")
    return " ".join(sentences)


def _named(claim: Mapping[str, Any]) -> str:
    """Claim without its full stop and, where it has one, its effect beside the paper's."""
    name = claim["claim"].rstrip(".")
    if "effect" not in claim:
        return name
    paper = claim["relative_paper"]
    return f"{name} ({_percent(claim['relative'])}" + (")" if paper is None else f"; paper {_percent(paper)})")


def _percent(value: float) -> str:
    return f"{number(value, 1 if abs(value) < 100 else 0, signed=True)} %"


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
    if cell.low is not None and cell.high is not None:
        text += f" [{number(cell.low, cell.digits)}, {number(cell.high, cell.digits)}]"
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
        texts.append(f"Here: the mean over {seeds}, ± its standard error; a cell of other seeds says how many.")
    elif common_seeds:
        texts.append(f"Here: {seeds}, so without a standard error; a cell of more seeds says how many.")
    if any(cell.low is not None for cell in cells):
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
