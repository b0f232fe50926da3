"""Options of `txl attention`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class AttentionOptions:
    """Options of `txl attention`: where the heads of a checkpoint attend (Figures 5-7).

    Lengths and batch size that are null are those of the run's own evaluation.

    Args:
        checkpoint: checkpoint of `txl train` with a Transformer-XL.
        split: train, valid or test; null for valid, or for the whole of another text (`data_path`).
        batch_size: number of streams.
        segment_len: tokens in a segment.
        mem_len: memory length in tokens.
        same_length: whether every query attends to exactly mem_len keys, as in the paper's evaluation.
        clamp_len: larger distances share one position; null for the length of the run's own evaluation, or else the
            longest distance of its training; -1 for no limit.
        max_segments: stop after this many segments; null for as many as the run's own evaluation, without limit if it
            had none.
        heads: heads of Figure 6 as LAYER:HEAD, counted from 1; null for the head with the largest mean distance in
            the first, the middle and the last layer.
        text_position: position in the split of Figure 6's first target; null for the middle.
        text_tokens: number of Figure 6's targets; null for 24, or fewer in short segments.
        data_path: the run's own files where they have moved, or others to read, in the vocabulary of the checkpoint.
        accelerator: cpu or gpu.
        num_threads: CPU threads; null for as many as training such a model pays for.
        logger: group: none or wandb.
    """

    checkpoint: str = MISSING
    split: str | None = None
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    same_length: bool = True
    clamp_len: int | None = None
    max_segments: int | None = None
    heads: list[str] | None = None
    text_position: int | None = None
    text_tokens: int | None = None
    data_path: Any = None
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)
