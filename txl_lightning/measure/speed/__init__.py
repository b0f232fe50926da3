"""Options of `txl speed`."""

from __future__ import annotations

from dataclasses import dataclass, field

from txl_lightning.config.schemas import LoggerConfig


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
        segment_len: tokens in a segment of state reuse.
        attention_lengths: attention lengths to time.
        rounds: number of rounds; a round times every scheme at every attention length.
        budget_seconds: no further round starts that would end later than this; 3 rounds are always timed.
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
    segment_len: int = 128
    attention_lengths: list[int] = field(default_factory=lambda: [800, 1800, 2800, 3800])
    rounds: int = 15
    budget_seconds: float = 480.0
    seed: int = 1
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=lambda: LoggerConfig(name="none"))
