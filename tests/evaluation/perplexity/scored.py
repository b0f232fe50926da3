"""`txl evaluate` on a short run, in this process."""

from pathlib import Path
from typing import Any

from tests.evaluation.small_runs import SmallRuns
from tests.training.small_run import evaluated


def result(runs: SmallRuns, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    """Return `evaluation.json`; scores the test split unless `options` has others."""
    return evaluated(runs.checkpoint(kind), directory, block_len=20, **{"splits": ["test"], **options})
