"""Writing of metrics to the loggers of a trainer."""

from __future__ import annotations

import sys

import lightning as L


def log_metrics(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Write values of the current step to every logger; a failed write does not end the training."""
    for logger in trainer.loggers:
        try:
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()
        except OSError as error:
            print(f"could not write the curves: {error}; training continues", file=sys.stderr, flush=True)
