"""Validate `results.json`: by its schema, and by rules that a schema cannot express."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import extend

from txl_lightning.errors import UserError

SCHEMA = Path(__file__).with_name("results.schema.json")


def check_results(results: Mapping[str, Any]) -> None:
    """Validate results by `results.schema.json` and for consistency (unique ids, keys of rows, tables of claims).

    Raises:
        UserError: naming the path of the first error, such as `sections[0].tables[0].rows[2].init`.
    """
    try:
        read_back = json.loads(json.dumps(results))  # as a reader of the file will see it
    except (TypeError, ValueError) as error:
        raise UserError(f"results.json: {error}") from error
    worst = best_match(_validator().iter_errors(read_back))
    if worst is not None:
        path = worst.json_path.removeprefix("$").removeprefix(".") or "the whole"
        message = " ".join(worst.message.split())
        raise UserError(f"results.json: {path}: {message if len(message) < 200 else message[:197] + '…'}")
    for path, message in _contradictions(read_back):
        raise UserError(f"results.json: {path}: {message}")


def _validator() -> Any:
    """Validator of the schema that also refuses NaN and infinity, which Python writes but JSON does not have."""

    def finite(_: Any, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    checker = Draft202012Validator.TYPE_CHECKER.redefine("number", finite)
    strict = extend(Draft202012Validator, type_checker=checker)
    return strict(json.loads(SCHEMA.read_text("utf-8")))


def _contradictions(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and message of each violation that a schema cannot express."""
    tables = [
        (f"sections[{i}].tables[{j}]", table)
        for i, section in enumerate(results["sections"])
        for j, table in enumerate(section["tables"])
    ]
    ids = {
        "sections": [section["id"] for section in results["sections"]],
        "sections[*].tables": [table["id"] for _, table in tables],
        "claims": [claim["id"] for claim in results["claims"]],
    }
    ids |= {f"{path}.columns": [column["key"] for column in table["columns"]] for path, table in tables}
    ids |= {f"{path}.row_keys": table.get("row_keys", []) for path, table in tables}
    for path, names in ids.items():
        yield from ((path, f"'{name}' is there twice") for name, count in Counter(names).items() if count > 1)
    for path, table in tables:
        of = {column["key"]: column["of"] for column in table["columns"]}
        if len(table.get("row_keys", table["rows"])) != len(table["rows"]):
            yield f"{path}.row_keys", f"must be {len(table['rows'])} keys, one per row"
        for i, row in enumerate(table["rows"]):
            if wrong := sorted(set(of) ^ set(row)):
                yield f"{path}.rows[{i}]", f"'{wrong[0]}' is a column or a cell, but not both"
            for key, cell in row.items():
                if "difference" in (cell or {}) and of.get(key, "ours") != "ours":
                    yield f"{path}.rows[{i}].{key}.difference", "only a column of ours has differences"
    for i, claim in enumerate(results["claims"]):
        for name in claim["tables"]:
            if name not in ids["sections[*].tables"]:
                yield f"claims[{i}].tables", f"there is no table '{name}'"
