"""Options of `txl attention`."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class AttentionOptions:
    """The configuration of `txl attention`: where the heads of a checkpoint look (Figures 5-7).

    Lengths that are null are what the run was evaluated with; with `same_length`, as in the paper's
    evaluation, every token sees `mem_len` keys. `heads` are those of Figure 6, `LAYER:HEAD` from 1; null means
    the one that looks farthest in the first, the middle and the last layer. `text_position` is Figure 6's first
    target in the split, null for the middle; `text_tokens` are its rows, null for 24 or what a segment has room for.
    """

    checkpoint: str = MISSING
    split: str = "valid"
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    same_length: bool = True
    clamp_len: int | None = None
    max_segments: int | None = None
    heads: list[str] | None = None
    text_position: int | None = None
    text_tokens: int | None = None
    data_path: str | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)
