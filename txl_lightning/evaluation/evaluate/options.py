"""Options of `txl evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class EvaluateOptions:
    """The configuration of `txl evaluate`. Lengths and batch are null for what the run was evaluated with.

    `protocol` is `memory` (the state goes from segment to segment) or `sliding` (`stride` tokens are scored with
    at most `window` recomputed; null: half a window, and training's attention length). In a sweep of
    `attention_lengths`, what is worse than the best by at most `tolerance` reaches it (null: 0.005 ppl or
    0.0005 bpc). Standard errors are over blocks of `block_len` tokens where a corpus has no sentences.
    """

    checkpoint: str = MISSING
    splits: list[str] = field(default_factory=lambda: ["valid", "test"])
    protocol: str = "memory"
    batch_size: int | None = None
    segment_len: int | None = None
    mem_len: int | None = None
    ext_len: int | None = None
    same_length: bool | None = None
    clamp_len: int | None = None
    window: int | None = None
    stride: int | None = None
    attention_lengths: list[int] | None = None
    tolerance: float | None = None
    block_len: int = 1000
    losses: bool = False
    data_path: str | None = None
    max_segments: int | None = None
    cached: bool = True
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))
