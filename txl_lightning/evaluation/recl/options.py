"""Options of `txl recl`."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from txl_lightning.config.schemas import LoggerConfig


@dataclass
class ReclOptions:
    """The configuration of `txl recl`: a group of checkpoints, a grid of contexts, and appendix C's choices.

    `names` null means the runs' own directories. The grid is first_context, first_context + step, … up to
    max_context. `clamp_len` null means what each run was evaluated with. `store` keeps losses for later
    groups; `data_path` scores on another text of the same vocabulary.
    """

    checkpoints: list[str] = MISSING
    names: list[str] | None = None
    split: str = "test"
    first_context: int = 16
    step: int = 16
    max_context: int = 256
    n_positions: int = 1000
    fractions: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])
    threshold: float = 0.01
    bootstrap: int = 1000
    seed: int = 1
    clamp_len: int | None = None
    data_path: str | None = None
    store: str = "~/.cache/txl_lightning/losses"
    batch_tokens: int | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)
