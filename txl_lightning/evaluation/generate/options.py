"""Options of `txl generate`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class GenerateOptions:
    """The configuration of `txl generate`: what to continue, and how tokens are drawn.

    Either `prompt`, or `context` consecutive tokens of `split` from `position` on (null: drawn with `seed`).
    `mem_len` null means the memory that the run was evaluated with, and for a run without recurrence a window
    of its training segment that is computed anew for every token. `top_k` null draws from all tokens.
    """

    checkpoint: str = MISSING
    prompt: str | None = None
    context: int | None = None
    position: int | None = None
    split: str = "test"
    n_tokens: int = 500
    n_samples: int = 1
    top_k: int | None = 40
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 1
    mem_len: int | None = None
    data_path: str | None = None
    accelerator: str = "cpu"
    num_threads: int | None = None
