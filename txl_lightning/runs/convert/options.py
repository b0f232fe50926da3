"""Options of `txl convert`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from txl_lightning.config.schemas import Config


@dataclass
class ConvertOptions(Config):
    """The configuration of `txl convert`: a training configuration, for `target_format=txl`, and the files."""

    source: str = MISSING
    source_format: str = MISSING
    target: str = MISSING
    target_format: str = MISSING
    memory_start: str | None = None
