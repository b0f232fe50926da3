"""Options of `txl convert`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from txl_lightning.config.schemas import Config


@dataclass
class ConvertOptions(Config):
    """Options of `txl convert`, besides those of a training run, which matter for `target_format=txl` only.

    Args:
        source: checkpoint to convert: a file, or a folder with weights and config.json.
        source_format: original, huggingface or txl.
        target: path of the result, which must not exist: a file for txl, otherwise a folder.
        target_format: original, huggingface or txl.
        memory_start: empty or zeros, the start of the memory; null for that of the source.
    """

    source: str = MISSING
    source_format: str = MISSING
    target: str = MISSING
    target_format: str = MISSING
    memory_start: str | None = None
