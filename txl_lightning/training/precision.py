"""Precision of a training run where the config says `auto`."""

from __future__ import annotations

from dataclasses import replace

from txl_lightning.config.schemas import Config
from txl_lightning.runs.bfloat16 import fastest_precision


def resolve_precision(config: Config) -> Config:
    """Return the config with `trainer.precision=auto` replaced by `fastest_precision`.

    The resolved value is part of the run's identity: it stands in `config.yaml` and in checkpoints, and a run resumes
    with the same one only.
    """
    if config.trainer.precision != "auto":
        return config
    precision = fastest_precision(config.trainer.accelerator)
    return replace(config, trainer=replace(config.trainer, precision=precision))
