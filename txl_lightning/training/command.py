"""`txl train`: one training run."""

from __future__ import annotations

from pathlib import Path

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import leaving
from txl_lightning.runs.metrics import shown_units
from txl_lightning.training.precision import resolve_precision
from txl_lightning.training.run import train


def run(options: Config, directory: Path) -> list[str]:
    """Train one model and return its metrics on one line.

    Raises:
        UserError: as `train` does.
    """
    resolved = resolve_precision(options)
    with leaving():
        metrics = train(resolved, directory)
    units = [f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", *shown_units(metrics, f"{split}/"))]
    shown = [f"{key} {metrics[key]:.4f}" for key in units]
    lines = [f"{', '.join(shown)} after {metrics['steps']} steps"]
    if options.trainer.precision == "auto":
        lines.insert(0, f"trainer.precision=auto: trained with {resolved.trainer.precision} on this machine")
    return lines
