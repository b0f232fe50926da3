"""`txl train`: one training run."""

from __future__ import annotations

from pathlib import Path

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import leaving
from txl_lightning.runs.metrics import shown_units
from txl_lightning.training.loggers.wandb_history import upload_command
from txl_lightning.training.precision import resolve_accelerator, resolve_precision
from txl_lightning.training.run import train


def run(options: Config, directory: Path) -> list[str]:
    """Train one model and return its metrics on one line, and how to upload an offline W&B run.

    Raises:
        UserError: as `train` does.
    """
    resolved = resolve_precision(resolve_accelerator(options))
    with leaving():
        metrics = train(resolved, directory)
    units = [f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", *shown_units(metrics, f"{split}/"))]
    shown = [f"{key} {metrics[key]:.4f}" for key in units]
    lines = [f"{', '.join(shown)} after {metrics['steps']} steps"]
    if options.trainer.accelerator == "auto":
        lines.insert(0, f"trainer.accelerator=auto: trained on {resolved.trainer.accelerator}")
    if options.trainer.precision == "auto":
        lines.insert(0, f"trainer.precision=auto: trained with {resolved.trainer.precision} on this machine")
    if options.logger.name == "wandb" and (upload := upload_command(directory)):
        lines.append(f"offline run of Weights & Biases, to upload it: {upload}")
    return lines
