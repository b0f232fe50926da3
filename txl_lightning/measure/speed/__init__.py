"""Options of `txl speed`, and Table 9 of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field

from txl_lightning.config.schemas import LoggerConfig

TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Time per token of the vanilla model over that of Transformer-XL, by attention length (enwik8)."""


@dataclass
class SpeedOptions:
    """Options of `txl speed`: time per token of a vanilla sliding window and of state reuse (Table 9).

    Args:
        checkpoint: checkpoint of `txl train` to time; null for a model with random weights.
        levels: char, word or both, with the paper's vocabularies; random weights only.
        n_layer: layers; random weights only.
        d_model: width of the model; random weights only.
        n_head: heads per layer; random weights only.
        d_inner: width of the feed-forward layers; random weights only.
        vanilla_n_layer: layers of the vanilla model; null for the number of the Transformer-XL.
        segment_len: tokens in a segment of state reuse.
        attention_lengths: attention lengths to time.
        rounds: number of rounds; a round times every scheme at every attention length.
        budget_seconds: time limit of the command; no round that would exceed it starts, and 3 rounds must fit.
        clock: wall, or cpu to count the CPU time of one thread, for a machine that also does other work.
        seed: seed of weights and text.
        accelerator: cpu or gpu.
        num_threads: CPU threads; null for torch's default.
        logger: group: none or wandb.
    """

    checkpoint: str | None = None
    levels: list[str] = field(default_factory=lambda: ["char", "word"])
    n_layer: int = 4
    d_model: int = 128
    n_head: int = 8
    d_inner: int = 512
    vanilla_n_layer: int | None = None
    segment_len: int = 128
    attention_lengths: list[int] = field(default_factory=lambda: [800, 1800, 2800, 3800])
    rounds: int = 15
    budget_seconds: float = 480.0
    clock: str = "wall"
    seed: int = 1
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))
