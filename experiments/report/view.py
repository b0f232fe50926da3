"""What both renderings of a report show: cells as text, columns under "here" and "paper", differences, seeds."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

HEADINGS = {"label": "", "ours": "here", "paper": "paper"}
SIGNS = {"holds": "✓", "does not hold": "✗", "within noise": "≈"}
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories that a page would not show, or not bear


@dataclass(frozen=True)
class Column:
    """A column as it is shown.

    Args:
        title: without unit.
        unit: of its numbers, or None.
        of: label, ours or paper.
        first: it begins a group of columns of the same `of`.
    """

    title: str
    unit: str | None
    of: str
    first: bool

    @property
    def heading(self) -> str:
        """Group, title and unit in one line, where a table has no second header row."""
        text = ": ".join(part for part in (HEADINGS[self.of], self.title) if part)
        return f"{text} ({self.unit})" if self.unit else text


@dataclass(frozen=True)
class Cell:
    """A cell as it is shown.

    Args:
        text: with ±, interval and ≥, without unit.
        seeds: its values by seed, or nothing.
    """

    text: str
    seeds: str = ""


@dataclass(frozen=True)
class TableView:
    """A table as it is shown.

    Args:
        id: of the table in `results.json`.
        caption: what it shows.
        columns: with one of differences after a column that has any.
        groups: heading, `of` and number of columns of each group, in order.
        rows: a cell for each column.
        notes: the experiment's, then what ± and brackets mean.
        by_seed: header and rows of the values by seed, or None.
    """

    id: str
    caption: str
    columns: list[Column]
    groups: list[tuple[str, str, int]]
    rows: list[list[Cell]]
    notes: list[str]
    by_seed: tuple[list[str], list[list[str]]] | None


def table_view(table: Mapping[str, Any]) -> TableView:
    """The view of a checked table."""
    usual = _usual_seeds(table)
    columns: list[Column] = []
    keys: list[tuple[str, bool]] = []  # of results.json, and whether the difference is shown
    for source in table["columns"]:
        first = not columns or columns[-1].of != source["of"]
        columns.append(Column(source["title"], source["unit"], source["of"], first))
        keys.append((source["key"], False))
        if any("difference" in (row[source["key"]] or {}) for row in table["rows"]):
            title = f"{source['title']}: difference" if source["title"] else "difference"
            columns.append(Column(title, source["unit"], source["of"], False))
            keys.append((source["key"], True))
    return TableView(
        id=table["id"],
        caption=table["caption"],
        columns=columns,
        groups=[(HEADINGS[of], of, len(list(group))) for of, group in groupby(columns, lambda column: column.of)],
        rows=[[_cell(row[key], difference, usual) for key, difference in keys] for row in table["rows"]],
        notes=[*table.get("notes", []), *_explanations(table, usual)],
        by_seed=_by_seed(table),
    )


def number(value: float, digits: int, signed: bool = False) -> str:
    """1234.5 -> 1,234.5; minus is a minus sign; `signed` adds a plus."""
    text = f"{value:{'+' if signed else ''},.{int(digits)}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")  # a rounded nothing has no sign
    return text.replace("-", "−")


def duration(seconds: float) -> str:
    """75.1 -> 75 s; 5000 -> 1 h 23 min."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def visible(text: str) -> str:
    """Text of a model, with escapes for what is no sign (controls, half characters) but line ends and tabs."""
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in HIDDEN else sign.encode("unicode_escape").decode()
        for sign in text
    )


def mark_counts(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """How often each mark was given, best first, without those that were not."""
    counts = Counter(claim["mark"] for claim in claims)
    return [(mark, counts[mark]) for mark in SIGNS if counts[mark]]


def _usual_seeds(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The seeds that most cells are means over."""
    seeds = Counter(tuple(sorted(cell["by_seed"], key=int)) for cell in _cells(table) if "by_seed" in cell)
    return seeds.most_common(1)[0][0] if seeds else ()


def _cells(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [cell for row in table["rows"] for cell in row.values() if cell is not None]


def _cell(cell: Mapping[str, Any] | None, difference: bool, usual: tuple[str, ...]) -> Cell:
    if cell is None or (difference and "difference" not in cell):
        return Cell("")
    if difference:
        return Cell(number(cell["difference"], cell["digits"], signed=True))
    if "text" in cell:
        return Cell(visible(cell["text"]))
    return Cell(_number_text(cell, usual), _seeds_text(cell))


def _number_text(cell: Mapping[str, Any], usual: tuple[str, ...]) -> str:
    digits = cell["digits"]
    text = ("≥ " if cell.get("at_least") else "") + number(cell["value"], digits)
    if "standard_error" in cell:
        text += f" ± {number(cell['standard_error'], digits)}"
    if "low" in cell:
        text += f" [{number(cell['low'], digits)}, {number(cell['high'], digits)}]"
    seeds = cell.get("by_seed", {})
    return text if not seeds or set(seeds) == set(usual) else f"{text} (n = {len(seeds)})"


def _seeds_text(cell: Mapping[str, Any]) -> str:
    seeds = cell.get("by_seed", {})
    return "; ".join(f"seed {seed}: {number(seeds[seed], cell['digits'])}" for seed in sorted(seeds, key=int))


def _explanations(table: Mapping[str, Any], usual: tuple[str, ...]) -> list[str]:
    """What the signs in the cells mean, if there are such."""
    cells = _cells(table)
    seeds = f"seed{'s' if len(usual) > 1 else ''} {', '.join(usual)} (n = {len(usual)})"
    texts = []
    if len(usual) > 1:
        texts.append(f"Here: the mean over {seeds}, ± its standard error; a cell of other seeds says how many.")
    elif usual:
        texts.append(f"Here: {seeds}, so without a standard error; a cell of more seeds says how many.")
    if any("low" in cell for cell in cells):
        texts.append("In brackets: a 95 % interval.")
    if any(cell.get("at_least") for cell in cells):
        texts.append("≥: as far as was measured; the value may lie beyond.")
    return texts


def _by_seed(table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """A row for each row with values by seed, its labels in one, and a column for each column that has them."""
    labels = [column["key"] for column in table["columns"] if column["of"] == "label"]
    shown = [
        (column["key"], Column(column["title"], column["unit"], column["of"], False).heading)
        for column in table["columns"]
        if any("by_seed" in (row[column["key"]] or {}) for row in table["rows"])
    ]
    if not shown:
        return None
    rows = []
    for row in table["rows"]:
        values = [_seeds_text(row[key] or {}) for key, _ in shown]
        if any(values):
            rows.append([", ".join(filter(None, (_cell(row[key], False, ()).text for key in labels))), *values])
    return ["", *(heading for _, heading in shown)], rows
