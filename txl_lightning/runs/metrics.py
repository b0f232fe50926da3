"""Token-weighted loss over a split, in float64 whatever the model's precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


def loss_metrics(nll: float, level: str) -> dict[str, float]:
    """nll in nats a token and, by the level of the tokens, bits per character (or byte) or perplexity.

    bpc = nll / ln 2        ppl = exp nll
    """
    if level == "word":
        return {"nll": nll, "ppl": math.exp(nll) if nll < 700 else math.inf}
    return {"nll": nll, "bpc": nll / math.log(2)}


class TokenLoss(Metric):
    """Mean nll over tokens: float64 sum, int64 count, summed over ranks.

    torchmetrics' Perplexity wants all logits, counts in float32 (stuck at 2^24) and is infinite after one
    confident mistake.
    """

    full_state_update = False
    nll_sum: Tensor
    tokens: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("nll_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nll: Tensor) -> None:
        """Add the losses of some tokens."""
        self.nll_sum += nll.detach().double().sum()
        self.tokens += nll.numel()

    def compute(self) -> tuple[Tensor, Tensor]:
        """Mean loss in nats (nan before the first token), and over how many tokens."""
        return self.nll_sum / self.tokens, self.tokens.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> TokenLoss:
        """Move with the module but never lose float64 to `.to(dtype)`."""
        nll_sum = self.nll_sum
        super()._apply(fn, *args, **kwargs)
        self.nll_sum = nll_sum.to(self.tokens.device)
        self._defaults["nll_sum"] = torch.zeros((), dtype=torch.float64, device=self.tokens.device)
        return self
