"""Options of `txl speed`."""

from __future__ import annotations

from dataclasses import dataclass, field

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class SpeedOptions:
    """The configuration of `txl speed`: sizes of a random model, or a checkpoint, and what is timed.

    `vanilla_n_layer` null means as many layers as the other side. There are `rounds` rounds, or as many as
    fit into `budget_seconds`. `clock=cpu` counts the processor's time of one thread, for a machine that has
    other work too.
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
