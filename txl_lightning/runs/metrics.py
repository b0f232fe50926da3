"""Mean loss over tokens, in float64 whatever the model's precision, and its units."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


def loss_metrics(nll: float, level: str) -> dict[str, float]:
    """Return the metrics of a mean loss: `nll`, and `ppl` for words and tokens or `bpc` for characters and bytes.

    bpc = nll / ln 2        ppl = exp nll (infinite from nll = 700, where float64 nearly overflows)

    Args:
        nll: mean negative log-likelihood in nats per token.
        level: level of the tokens: byte, char, word, or token for the pieces of another tokenizer.
    """
    if level in ("word", "token"):
        return {"nll": nll, "ppl": math.exp(nll) if nll < 700 else math.inf}
    return {"nll": nll, "bpc": nll / math.log(2)}


WITHOUT_FLOAT64 = ("mps",)  # types of devices


class TokenLoss(Metric):
    """Mean loss over tokens: a float64 sum and an int64 count, both summed over ranks.

    torchmetrics' Perplexity is not used: it needs all logits, sums in float32 and becomes infinite when one
    token has probability 0.
    """

    full_state_update = False
    nll_sum: Tensor
    tokens: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("nll_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nll: Tensor) -> None:
        """Add the losses of some tokens, in nats."""
        self.nll_sum += nll.detach().to(self.nll_sum.device).double().sum()
        self.tokens += nll.numel()

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the mean loss in nats per token (nan without tokens) and the number of tokens."""
        return self.nll_sum / self.tokens.to(self.nll_sum.device), self.tokens.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> TokenLoss:
        # `.to(dtype)` of the module must not cast the float64 sum, which stays on the CPU if the device has no float64.
        nll_sum = self.nll_sum
        self.nll_sum = self._defaults["nll_sum"] = torch.zeros((), device=nll_sum.device)
        super()._apply(fn, *args, **kwargs)
        device = self.tokens.device if self.tokens.device.type not in WITHOUT_FLOAT64 else torch.device("cpu")
        self.nll_sum = nll_sum.to(device)
        self._defaults["nll_sum"] = torch.zeros((), dtype=torch.float64, device=device)
        return self
