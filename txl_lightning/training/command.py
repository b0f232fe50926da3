"""`txl train`: one training run."""

from __future__ import annotations

import signal
from pathlib import Path

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import leaving
from txl_lightning.errors import Stopped
from txl_lightning.runs.metrics import shown_units
from txl_lightning.training.checks import options_without_effect, resolve_accelerator
from txl_lightning.training.loggers import upload_line
from txl_lightning.training.run import train
from txl_lightning.training.stopping import requeue


def run(options: Config, directory: Path) -> list[str]:
    """Train one model and return its metrics on one line, and how to upload an offline W&B run.

    Options without effect are printed at once.

    Raises:
        UserError: as `train` does.
    """
    for sentence in options_without_effect(options):
        print(sentence, flush=True)
    try:
        with leaving():
            metrics = train(options, directory)
    except Stopped as stopped:
        if stopped.signum == signal.SIGUSR1:
            requeue(options)
        raise
    units = [f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", *shown_units(metrics, f"{split}/"))]
    shown = [f"{key} {metrics[key]:.4f}" for key in units]
    unknown = metrics["corpus"].get("unknown", {})
    shown += [f"{share:.1%} of {split} <unk>" for split, share in unknown.items() if any(unknown.values())]
    lines = [f"{', '.join(shown)} after {metrics['steps']} steps"]
    if metrics["weights_step"] != metrics["steps"]:
        lines[0] += f", with the weights of step {metrics['weights_step']}, the best on validation"
    if options.trainer.accelerator == "auto":
        lines.insert(0, f"trainer.accelerator=auto: trained on {resolve_accelerator(options).trainer.accelerator}")
    if options.logger.name == "wandb" and (line := upload_line(directory)):
        lines.append(line)
    return lines
