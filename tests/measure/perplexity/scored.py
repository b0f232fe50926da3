"""`txl evaluate` on a short run, in this process."""

import json
from pathlib import Path
from typing import Any

from tests.measure.small_runs import SmallRuns
from txl_lightning.measure.options import EvaluateOptions
from txl_lightning.measure.perplexity import run


def result(runs: SmallRuns, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    """Return `evaluation.json`; scores the test split unless `options` has others."""
    options.setdefault("splits", ["test"])
    run(EvaluateOptions(runs.checkpoint(kind), block_len=20, **options), directory)
    return json.loads((directory / "evaluation.json").read_text())
