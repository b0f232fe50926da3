"""Accelerator and precision of a training run: the choices where the config says `auto`, and their limits."""

from __future__ import annotations

from dataclasses import replace

import torch

from txl_lightning.config.schemas import Config, TrainerConfig
from txl_lightning.distributed.ranks import n_processes
from txl_lightning.errors import require
from txl_lightning.runs.bfloat16 import fastest_precision

ACCELERATORS = ("auto", "cpu", "gpu", "mps")


def resolve_machine(config: Config) -> Config:
    """Return the config with the accelerator and the precisions of this machine in place of every `auto`."""
    return resolve_precision(resolve_accelerator(config))


def resolve_accelerator(config: Config) -> Config:
    """Return the config with `trainer.accelerator=auto` replaced: gpu, else mps for one process, else cpu."""
    trainer = config.trainer
    if trainer.accelerator != "auto":
        return config
    if torch.cuda.is_available():
        chosen = "gpu"
    elif torch.backends.mps.is_available() and n_processes(trainer) == 1:
        chosen = "mps"
    else:
        chosen = "cpu"
    return replace(config, trainer=replace(trainer, accelerator=chosen))


def check_accelerator(trainer: TrainerConfig) -> None:
    """Validate the accelerator and the options that depend on it.

    Raises:
        OptionError: it is unknown or not on this machine, or it cannot do what another option asks.
    """
    name, precision = trainer.accelerator, trainer.precision
    require(name in ACCELERATORS, "trainer.accelerator", name, f"must be one of {', '.join(ACCELERATORS)}")
    half_on_cpu = precision == "16-mixed" and name == "cpu"
    require(not half_on_cpu, "trainer.precision", precision, "needs a GPU (bf16-mixed works without one)")
    n_gpus = torch.cuda.device_count()
    visible = f"{n_gpus} GPUs are visible and trainer.devices={trainer.devices}"
    require(name != "gpu" or n_gpus >= trainer.devices, "trainer.accelerator", name, visible)
    if name == "mps":
        require(torch.backends.mps.is_available(), "trainer.accelerator", name, "this machine has no Apple GPU")
        allowed = f"is one device: trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes} must be 1"
        require(n_processes(trainer) == 1, "trainer.accelerator", name, allowed)
        require(precision == "32-true", "trainer.precision", precision, "must be 32-true with trainer.accelerator=mps")


def resolve_precision(config: Config) -> Config:
    """Return the config with `auto` replaced in `trainer.precision` (see `fastest_precision`) and in
    `optimizer.ns_precision`: 32-true for Muon without mixed precision, else bf16-true.

    A resolved value is part of the run's identity: it stands in `config.yaml` and in checkpoints, and a run resumes
    with the same one only.
    """
    if config.trainer.precision == "auto":
        precision = fastest_precision(config.trainer.accelerator)
        config = replace(config, trainer=replace(config.trainer, precision=precision))
    if config.optimizer.ns_precision == "auto":
        single = config.optimizer.name == "muon" and not config.trainer.precision.endswith("-mixed")
        chosen = "32-true" if single else "bf16-true"
        config = replace(config, optimizer=replace(config.optimizer, ns_precision=chosen))
    return config
