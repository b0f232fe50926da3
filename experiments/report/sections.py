"""Sections of the report, and their form in `results.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from experiments.report.cells import Cell, Number, Text

Of = Literal["label", "ours", "paper"]
Row: TypeAlias = Mapping[str, Cell]
"""Cells by key of their column."""


@dataclass(frozen=True)
class Column:
    """Column of a table; `label`, `ours` and `paper` make one.

    Args:
        key: of its cells in a row.
        title: without unit.
        of: words that name the row, our measurements, or numbers of the paper.
        unit: of its numbers, or None.
    """

    key: str
    title: str
    of: Of
    unit: str | None


def label(key: str, title: str = "", unit: str | None = None) -> Column:
    """Return a column that names the rows."""
    return Column(key, title, "label", unit)


def ours(key: str, title: str, unit: str | None = None) -> Column:
    """Return a column of our measurements."""
    return Column(key, title, "ours", unit)


def paper(key: str, title: str, unit: str | None = None) -> Column:
    """Return a column of the paper's numbers."""
    return Column(key, title, "paper", unit)


@dataclass(frozen=True)
class Table:
    """Table of the report.

    Args:
        id: unique in the report; claims name their tables by it.
        caption: above the table.
        columns: from left to right, labels first.
        rows: by key (of an arm, for most tables), from top to bottom; each has a cell for each column.
        notes: below the table.
    """

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Row]
    notes: tuple[str, ...] = ()

    def number(self, row: str, column: str) -> Number:
        """Return a cell that holds a number.

        Raises:
            KeyError: no such row or column.
            TypeError: the cell is empty or holds text.
        """
        cell = self.rows[row][column]
        if not isinstance(cell, Number):
            raise TypeError(f"table {self.id}, row {row}, column {column}: must be a number, is {cell}")
        return cell

    def title(self, row: str) -> str:
        """Return the text in the first column of a row."""
        cell = self.rows[row][self.columns[0].key]
        return cell.text if isinstance(cell, Text) else ""


@dataclass(frozen=True)
class Figure:
    """Figure of the report.

    Args:
        png: path, relative to the report's folder.
        svg: path of the same figure as SVG, or None.
        caption: below the figure.
        alt: description for readers who cannot see it.
    """

    png: str
    svg: str | None
    caption: str
    alt: str


@dataclass(frozen=True)
class Sample:
    """Text that a model wrote.

    Args:
        title: above it.
        context: text the model was given.
        truth: text that follows the context in the corpus.
        text: text the model wrote.
    """

    title: str
    context: str
    truth: str
    text: str


@dataclass(frozen=True)
class Section:
    """Section of the report: one table or figure of the paper, and ours beside it.

    Args:
        id: unique in the report.
        title: heading; the part before a colon is its short form.
        paper: the paper's finding.
        here: the runs of this report.
        tables: in order.
        figures: in order, below the tables.
        samples: in order, at the end.
    """

    id: str
    title: str
    paper: str
    here: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    samples: tuple[Sample, ...] = ()


def to_json(part: Any) -> Any:
    """Return a section, or a part of one, as plain JSON; fields at their default are left out, `tables` never is."""
    if isinstance(part, Mapping):
        return {str(key): to_json(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [to_json(value) for value in part]
    if not is_dataclass(part):
        return part
    values = {field.name: (getattr(part, field.name), field.default) for field in fields(part)}
    plain = {name: to_json(value) for name, (value, default) in values.items() if value != default or name == "tables"}
    if isinstance(part, Table):
        plain |= {"rows": list(plain["rows"].values()), "row_keys": list(part.rows)}
    return plain


def section_from_json(found: Mapping[str, Any]) -> Section:
    """Return a section of a checked `results.json`."""
    return Section(
        found["id"],
        found["title"],
        found["paper"],
        found["here"],
        tuple(_table(table) for table in found["tables"]),
        tuple(Figure(**figure) for figure in found.get("figures", [])),
        tuple(Sample(**sample) for sample in found.get("samples", [])),
    )


def _table(found: Mapping[str, Any]) -> Table:
    keys = found.get("row_keys") or map(str, range(len(found["rows"])))  # files of older versions have none
    rows = [{column: _cell(cell) for column, cell in row.items()} for row in found["rows"]]
    columns = tuple(Column(**column) for column in found["columns"])
    return Table(
        found["id"], found["caption"], columns, dict(zip(keys, rows, strict=True)), tuple(found.get("notes", []))
    )


def _cell(found: Mapping[str, Any] | None) -> Cell:
    if found is None:
        return None
    return Text(**found) if "text" in found else Number(**found)
