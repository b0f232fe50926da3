"""Losses in a training step: the positions that count, and a compiled score."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.model.baselines import LSTMLayer
from txl_lightning.model.embedding import TokenSoftmax

UNCOMPILED: tuple[tuple[Any, str], ...] = (
    (TokenSoftmax, "_add_tails"),  # the shapes differ in every call, and each would be compiled
    # torch compiles no LSTM, and torch 2.11 fails at one with other weights
    (LSTMLayer, "forward"),
)


def scored_positions(loss: str, T: int, seed: int, step: int) -> slice | Tensor:
    """Return the positions in a segment that count for the training loss; half of an odd number is rounded up.

    Args:
        loss: full, half (the last) or random_half.
        T: number of positions.
        seed: the run's seed.
        step: steps before this one, or their segments where a step has several; together with only the seed it decides
            what is drawn, without replacement.
    """
    if loss == "random_half":
        drawn = np.random.default_rng([seed, step]).permutation(T)
        return torch.from_numpy(drawn[T // 2 :])
    if loss == "half":
        return slice(T // 2, T)
    return slice(0, T)


def compiled(score: Any, backend: str = "inductor") -> Any:
    """Return a compiled function whose backward pass is without autocast, as Lightning runs it."""
    options: Any = torch._functorch.config
    options.backward_pass_autocast = "off"  # read when the function is first called
    # Here, since as a decorator it imports torch._dynamo, which takes as long as torch.
    for owner, method in UNCOMPILED:
        setattr(
            owner,
            method,
            torch.compiler.disable(getattr(owner, method)),
        )
    return torch.compile(score, backend=backend)
