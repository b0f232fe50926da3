"""Read `results.json` in tests: check it by its schema, and return its sections as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from experiments.report.sections import Column, Figure, Number, Sample, Section, Table, Text

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "experiments" / "report" / "results.schema.json"


def check_results(results: Mapping[str, Any]) -> None:
    """Compare results with the schema and with what it cannot express: ids, keys, tables of claims."""
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(results)
    tables = [table for section in results["sections"] for table in section["tables"]]
    ids = [table["id"] for table in tables]
    for names in (ids, [section["id"] for section in results["sections"]], [it["id"] for it in results["claims"]]):
        assert len(set(names)) == len(names)
    for table in tables:
        assert len(set(table["row_keys"])) == len(table["rows"]), table["id"]
        assert all(set(row) == {column["key"] for column in table["columns"]} for row in table["rows"]), table["id"]
    assert all(set(claim["tables"]) <= set(ids) for claim in results["claims"])


def read_sections(results: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a `results.json`."""
    return [
        Section(
            **{name: section[name] for name in ("id", "title", "paper", "here")},
            tables=tuple(_table(table) for table in section["tables"]),
            figures=tuple(Figure(**figure) for figure in section.get("figures", [])),
            samples=tuple(Sample(**sample) for sample in section.get("samples", [])),
        )
        for section in results["sections"]
    ]


def _table(found: Mapping[str, Any]) -> Table:
    rows = [
        {key: cell and (Text(**cell) if "text" in cell else Number(**cell)) for key, cell in row.items()}
        for row in found["rows"]
    ]
    columns = tuple(Column(**column) for column in found["columns"])
    by_key = dict(zip(found["row_keys"], rows, strict=True))
    return Table(found["id"], found["caption"], columns, by_key, tuple(found.get("notes", [])))
