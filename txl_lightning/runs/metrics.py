"""Mean loss over tokens, in float64 whatever the model's precision, and its units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


def loss_unit(level: str) -> str:
    """Return the unit of losses: `ppl` for words and the tokens of BPE, `bpc` for characters and bytes.

    Args:
        level: level of the tokens: byte, char, word, bpe, or token for the pieces of another tokenizer.
    """
    return "ppl" if level in ("word", "bpe", "token") else "bpc"


def loss_metrics(nll: float, level: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return the metrics of a mean loss: `nll`, `ppl` or `bpc`, and `bpb`, which compares levels.

    bpc = nll / ln 2        bpb = bpc / bytes per token
    ppl = exp nll (infinite from nll = 700, where float64 nearly overflows)

    Args:
        nll: mean negative log-likelihood in nats per token.
        level: see `loss_unit`.
        bytes_per_token: mean over the same tokens; without `bpb` if it is None or nan (not known) or 0 (no text).
    """
    bits = nll / math.log(2)
    unit = loss_unit(level)
    values = {"nll": nll, unit: bits if unit == "bpc" else math.exp(nll) if nll < 700 else math.inf}
    if not bytes_per_token or math.isnan(bytes_per_token):
        return values
    return {**values, "bpb": bits / bytes_per_token}


def shown_units(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Return the units of a loss to show: `bpc` or `ppl`, and `bpb` where it is known and not the same.

    Args:
        values: metrics by name.
        prefix: of their names, such as `val/`.
    """
    units = [unit for unit in ("bpc", "ppl", "bpb") if f"{prefix}{unit}" in values]
    same = units == ["bpc", "bpb"] and values[f"{prefix}bpc"] == values[f"{prefix}bpb"]
    return units[:1] if same else units


WITHOUT_FLOAT64 = ("mps",)  # types of devices


class TokenLoss(Metric):
    """Mean loss over tokens and their number of bytes: float64 sums and an int64 count, summed over ranks.

    torchmetrics' Perplexity is not used: it needs all logits, sums in float32 and becomes infinite when one
    token has probability 0.
    """

    full_state_update = False
    nll_sum: Tensor
    bytes_sum: Tensor
    tokens: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("nll_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("bytes_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nll: Tensor, n_bytes: Tensor | float = math.nan) -> None:
        """Add the losses of some tokens, in nats, and their number of bytes (nan if it is not known)."""
        self.nll_sum += nll.detach().to(self.nll_sum.device).double().sum()
        self.bytes_sum += n_bytes.to(self.bytes_sum.device) if isinstance(n_bytes, Tensor) else n_bytes
        self.tokens += nll.numel()

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss in nats per token (nan without tokens), the tokens and the bytes (nan if not known)."""
        return self.nll_sum / self.tokens.to(self.nll_sum.device), self.tokens.clone(), self.bytes_sum.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> TokenLoss:
        # `.to(dtype)` of the module must not cast the float64 sums, which stay on the CPU if the device has no float64.
        sums = {"nll_sum": self.nll_sum, "bytes_sum": self.bytes_sum}
        for name, before in sums.items():
            self._defaults[name] = torch.zeros((), device=before.device)
            setattr(self, name, self._defaults[name])
        super()._apply(fn, *args, **kwargs)
        device = self.tokens.device if self.tokens.device.type not in WITHOUT_FLOAT64 else torch.device("cpu")
        for name, before in sums.items():
            setattr(self, name, before.to(device))
            self._defaults[name] = torch.zeros((), dtype=torch.float64, device=device)
        return self
