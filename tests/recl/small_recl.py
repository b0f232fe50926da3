"""`txl recl` on a small grid."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.options import ReclOptions
from txl_lightning.recl.command import run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/recl.schema.json").read_text())
SMALL: dict[str, Any] = {"first_context": 4, "step": 4, "max_context": 16, "n_positions": 30, "bootstrap": 20}
SMALL |= {"num_threads": 1, "logger": LoggerConfig(name="none")}


def recl(directory: Path, *checkpoints: str, **options: Any) -> dict[str, Any]:
    """Run the command in a folder and return its results, which keep to the schema."""
    directory.mkdir(exist_ok=True)
    run(ReclOptions(list(checkpoints), **{**SMALL, **options}), directory)
    result: dict[str, Any] = json.loads((directory / "recl.json").read_text())
    jsonschema.validate(result, SCHEMA)
    return result
