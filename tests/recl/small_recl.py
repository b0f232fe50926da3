"""`txl recl` on a small grid."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.recl.command import run
from txl_lightning.recl.options import ReclOptions

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/recl.schema.json").read_text())
SMALL = {
    "first_context": 4,
    "step": 4,
    "max_context": 16,
    "n_positions": 30,
    "bootstrap": 20,
    "num_threads": 1,
}


def recl(directory: Path, *checkpoints: str, **options: Any) -> dict[str, Any]:
    """Run the command in a folder and return its results, which keep to the schema."""
    directory.mkdir(exist_ok=True)
    given = {"logger": LoggerConfig(), **SMALL, **options}
    run(
        ReclOptions(list(checkpoints), **given),
        directory,
    )
    result = json.loads((directory / "recl.json").read_text())
    jsonschema.validate(result, SCHEMA)
    return result
