"""Resume a run from version 0.5: its checkpoint, as this version would have written it."""

from __future__ import annotations

from typing import Any

import torch

MANUAL = "epoch_loop.manual_optimization.optim_step_progress"
AUTOMATIC = "epoch_loop.automatic_optimization.optim_progress"


def convert(checkpoint: dict[str, Any], callbacks: list[Any]) -> None:
    """Change a 0.5 checkpoint's contents in place.

    Version 0.5 counted a step as one batch, also with stream groups, and kept the memory of several ranks in separate
    files, which are not read.

    Args:
        checkpoint: the file's contents.
        callbacks: the Trainer's callbacks that keep checkpoints.
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
    states["ValidationCurve"] = {"seconds": curves["seconds"]}
    best = states.pop("Checkpoints", {}).get("best", {"step": -1})
    for callback in callbacks:
        if best["step"] >= 0 and getattr(callback, "filename", None) == "best":
            states[callback.state_key] = _state_of_best(best["nll"])
    loops = checkpoint["loops"]["fit_loop"]
    steps = loops[MANUAL]["total"]["completed"]
    counts = loops[AUTOMATIC]["optimizer"]["step"]["total"]
    counts["ready"] = steps
    counts["completed"] = steps


def _state_of_best(nll: float) -> dict[str, Any]:
    """Return a state for Lightning's ModelCheckpoint with `best.ckpt` as its best file."""
    score = torch.tensor(nll, dtype=torch.float64)
    return {
        "monitor": "val/nll",
        "best_model_score": score,
        "best_model_path": "best.ckpt",
        "current_score": score,
        "dirpath": "",
        "best_k_models": {"best.ckpt": score},
        "kth_best_model_path": "best.ckpt",
        "kth_value": score,
        "last_model_path": "",
    }
