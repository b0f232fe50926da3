"""Loggers for a run: Lightning's, and the Weights & Biases run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import Logger, WandbLogger

from txl_lightning.config.architecture import KINDS
from txl_lightning.config.schemas import (
    Config,
    RecurrentModelConfig,
    TransformerXLModelConfig,
    plain,
)
from txl_lightning.errors import require
from txl_lightning.evaluation.trained import Checkpoint
from txl_lightning.training import Values
from txl_lightning.training.objects import make

CURVES = ("train/*", "context/*", "recl/*", "val/*")  # over tokens
# Their minimum is shown in the run's summary.
BEST_VALUES = ("val/nll", "val/bpc", "val/ppl", "val/bpt", "val/bpb")


def lightning_loggers(config: Config, directory: Path) -> list[Logger]:
    """Return the Lightning loggers that the group names, without W&B's.

    Raises:
        OptionError: one cannot be made.
    """
    loggers: list[Logger] = []
    for name, given in config.logger.each.items():
        if name == "wandb":
            continue
        option = f"logger.{name}"
        logger = make(given, option, Logger, save_dir=directory)
        is_wandb = isinstance(logger, WandbLogger)
        require(not is_wandb, option, given["_target_"], "is logger=wandb")
        loggers.append(logger)
    return loggers


def start_wandb(
    config: Config, directory: Path, n_parameters: int, resumed: Checkpoint | None
) -> WandbLogger:
    """Start a W&B run with the whole config, in group `logger.group` and tagged by arm; curves are over `tokens`.

    A resumed run continues its W&B run if both are online. Offline every session is a separate run: an upload would
    keep only the second among two folders with one id.

    Args:
        config: the run's config.
        directory: run directory.
        n_parameters: number of trained parameters.
        resumed: the previous session's checkpoint; None for the first one.

    Raises:
        OptionError: W&B refuses the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    run_id = None
    if resumed is not None and config.logger.mode == resumed.config.logger.mode == "online":
        run_id = resumed.record.get("wandb_id")
    words = arm(config)
    shown = plain(config)
    shown["parameters"] = n_parameters
    shown["arm"] = ", ".join(words)
    run = start_run(
        directory,
        config.logger,
        "train",
        shown,
        name=run_name(config),
        tags=[*words, *config.tags],
        run_id=run_id,
        takes_given_id=resumed is None,
    )
    for metric in CURVES:
        run.define_metric(metric, step_metric="tokens")
    for metric in BEST_VALUES:
        run.define_metric(metric, step_metric="tokens", summary="min")
    return WandbLogger(experiment=run)


def log_values(trainer: Trainer, values: Values) -> None:
    """Write values of the last step to all loggers at once, before a checkpoint of the step is saved."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)
        logger.save()


def wandb_runs(trainer: Trainer) -> list[Any]:
    """Return the Trainer's runs of W&B: one or none."""
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def arm(config: Config) -> list[str]:
    """Return the options that the ablation compares, in words; sizes, lengths and seed are not among them."""
    loss = f"{config.loss} loss"
    if isinstance(config.model, RecurrentModelConfig):
        return [config.model.name, loss]
    assert isinstance(config.model, TransformerXLModelConfig)
    recurrence = "recurrence" if config.memory.mem_len else "no recurrence"
    words = [config.encoding.name, recurrence, loss]
    if KINDS.named(config.encoding.name).terms != "a" and config.model.terms != "abcd":
        words.append(f"terms {config.model.terms or 'none'}")
    if config.variant:
        variant = config.variant["name"]
        for name, value in config.variant.items():
            if name != "name":
                variant += f" {name}={value}"
        words.append(variant)
    return words


def run_name(config: Config) -> str:
    """Return the arm and the options that are most often swept with it."""
    words = ", ".join(arm(config))
    lengths = f"memory {config.memory.mem_len}, segment {config.data.segment_len}"
    return f"{words}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
