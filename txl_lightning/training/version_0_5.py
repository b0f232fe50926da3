"""Resume a run of version 0.5: its checkpoint, as this version would have written it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from txl_lightning.training import Values

MANUAL = "epoch_loop.manual_optimization.optim_step_progress"
AUTOMATIC = "epoch_loop.automatic_optimization.optim_progress"
CURVES = {"ValidationCurve": "validation.jsonl", "ContextCurves": "context_curve.jsonl"}


def is_version_0_5(checkpoint: Values) -> bool:
    """Return whether version 0.5 wrote a checkpoint with a state of training."""
    return "training_memory" in checkpoint


def convert(checkpoint: Values, directory: Path) -> None:
    """Change a checkpoint of 0.5 in place.

    Version 0.5 counted a step as one batch, also with groups of streams. It kept the rows of the curves in
    the run's folder, and the memory of several ranks in files of its own, which are not read.

    Args:
        checkpoint: contents of the file.
        directory: run directory.
    """
    memory = checkpoint.pop("training_memory")
    states = checkpoint["callbacks"]
    curves = states.pop("TrainingCurves")
    checkpoint["txl_lightning"]["training"] = {
        "groups": 1,
        "memory": {"next_number": memory["next_number"], "memory": memory["memory"]},
        "random": states.pop("RandomState")["ranks"],
        "tokens": curves["tokens"],
        "since": curves["since"],
    }
    for callback, name in CURVES.items():
        states[callback] = {"rows": _rows_until(directory / name, checkpoint["global_step"])}
    states["ValidationCurve"]["seconds"] = curves["seconds"]
    best = states.pop("Checkpoints", {}).get("best", {"step": -1})
    best_nll = math.inf
    if best["step"] >= 0:
        best_nll = best["nll"]
    states["RunCheckpoint"] = {"best_nll": best_nll}
    loops = checkpoint["loops"]["fit_loop"]
    steps = loops[MANUAL]["total"]["completed"]
    counts = loops[AUTOMATIC]["optimizer"]["step"]["total"]
    counts["ready"] = steps
    counts["completed"] = steps


def _rows_until(path: Path, step: int) -> list[Any]:
    """Return the rows of a file of JSON lines that were measured up to a step."""
    rows = []
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            if row["steps"] <= step:
                rows.append(row)
    return rows
