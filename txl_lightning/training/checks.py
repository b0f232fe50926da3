"""Refuse a training run's options before anything is prepared."""

from __future__ import annotations

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment

from txl_lightning.config.schemas import (
    WITHOUT_PATH,
    Config,
    RecurrentModelConfig,
    plain,
)
from txl_lightning.errors import UserError, require
from txl_lightning.evaluation.models import architecture
from txl_lightning.ranks import Ranks, environment, n_processes


def check_config(config: Config) -> None:
    """Validate a training run's options before anything is prepared.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    architecture(config, vocab_size=2**31)  # any vocabulary size: the corpus is not prepared yet
    has_weights = config.resume not in WITHOUT_PATH or config.initial_weights is not None
    allowed = "needs ckpt_path=FILE, whose weights are evaluated"
    require(config.train or has_weights, "train", config.train, allowed)
    _check_sizes(config)
    _check_device(config)


def _check_sizes(config: Config) -> None:
    W = n_processes(config.trainer)
    G = config.trainer.stream_groups
    batch_size = config.data.batch_size
    processes = f"{W} processes (trainer.devices={config.trainer.devices})"
    enough = f"must be at least the {processes}, times trainer.stream_groups={G}"
    require(batch_size >= W * G, "data.batch_size", batch_size, enough)
    batch_size = config.evaluation.batch_size
    require(
        batch_size >= W, "evaluation.batch_size", batch_size, f"must be at least the {W} processes"
    )
    if isinstance(config.model, RecurrentModelConfig):
        n_segments = config.memory.gradient_segments
        allowed = f"must be 0: {config.model.name} stores no states; a longer data.segment_len does the same"
        require(n_segments == 0, "memory.gradient_segments", n_segments, allowed)
    optimizer = config.optimizer
    allowed = "must be between 0 and optimizer.lr"
    require(optimizer.min_lr <= optimizer.lr, "optimizer.min_lr", optimizer.min_lr, allowed)
    can_be_exact = optimizer.ns_precision != "32-true" or optimizer.name == "muon"
    require(
        can_be_exact, "optimizer.ns_precision", optimizer.ns_precision, "is for optimizer=muon only"
    )


def _check_device(config: Config) -> None:
    trainer = config.trainer
    accelerator = trainer.accelerator
    if accelerator == "gpu":
        n_gpus = torch.cuda.device_count()
        if n_gpus == 1 and isinstance(environment(), SLURMEnvironment):
            n_gpus = trainer.devices  # --gpus-per-task=1 shows each process one GPU
        visible = f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}"
        require(n_gpus >= trainer.devices, "trainer.accelerator", accelerator, visible)
    if accelerator == "cpu":
        needs = "needs a GPU (bf16-mixed works without one)"
        require(trainer.precision != "16-mixed", "trainer.precision", trainer.precision, needs)


def check_same_on_all_ranks(config: Config, ranks: Ranks) -> None:
    """Check that all ranks were started with equal options; otherwise they would train different models.

    Raises:
        UserError: one has other options than rank 0.
    """
    options = plain(config)
    differs = ranks.largest(ranks.first(options) != options)
    if differs:
        raise UserError("the ranks were started with different options: give each the same command")
