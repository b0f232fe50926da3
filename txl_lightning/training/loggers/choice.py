"""Where the curves of a run go, a resumed one's behind those of before."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, Logger

from txl_lightning.config.schemas import Config
from txl_lightning.training.loggers import wandb_curves


def make_logger(
    config: Config, directory: Path, n_parameters: int, step: int = 0, run_id: str | None = None
) -> Logger | bool:
    """The chosen logger, knowing the whole configuration.

    Args:
        config: of the run.
        directory: of the run.
        n_parameters: of the model.
        step: after which this run goes on.
        run_id: the W&B run that it goes on with. Offline that is another folder with the same id: the curves
            join at `wandb sync`.

    Raises:
        OptionError: W&B does not take the run.
    """
    if config.logger.name == "csv":
        return continued_csv(directory, step)
    if config.logger.name == "none":
        return False
    return wandb_curves.start(config, directory, n_parameters, run_id)


def log(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Give values to every logger; a full disk is reported and must not end the training."""
    for logger in trainer.loggers:
        try:
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()
        except OSError as error:
            print(f"the curves could not be written: {error}; training goes on", file=sys.stderr, flush=True)


def continued_csv(directory: Path, step: int) -> CSVLogger:
    """`metrics.csv`, which Lightning would begin anew, with the rows up to `step` that it has."""
    path = directory / "metrics.csv"
    rows: list[dict[str, Any]] = []
    if step and path.exists():
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            last = (reader.fieldnames or ["step"])[-1]  # None in a row that was cut short
            rows = [row for row in reader if row[last] is not None and int(row["step"]) <= step]
    logger = CSVLogger(save_dir=directory, name=None, version="")
    logger.experiment.metrics = rows
    logger.save()
    return logger
