"""Layer parts: dropout that is fast on the CPU, feed-forward, and how parameters are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.gpu import Linear, is_eager_on_cpu

LEVELS = 1 << 16  # values of the 16-bit random number that decides one element
WEIGHT_STD = 0.02
PROJECTION_STD = 0.01


class Dropout(nn.Module):
    """Inverted dropout: each element is zeroed with probability p, the rest are divided by 1 - p.

    On CPU torch draws one random number per element. This can cost more than a layer's matrix products. Here one 64-bit
    draw from the same generator decides four elements, so p is rounded to a multiple of 2^-16 (0.1 becomes 0.100006,
    and the scale follows). On other devices, and when compiled, it is torch's dropout.

    Args:
        p: probability that an element is zeroed, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in `x` in training; return them all in evaluation."""
        if not (self.training and self.p > 0.0):
            return x
        if not is_eager_on_cpu(x):
            return F.dropout(x, self.p)
        return x * self._factors(x)

    @property
    def _dropped_levels(self) -> int:
        return min(max(round(self.p * LEVELS), 1), LEVELS - 1)

    @property
    def _scale(self) -> float:
        return LEVELS / (LEVELS - self._dropped_levels)

    def _factors(self, x: Tensor) -> Tensor:
        """Draw 0 or the scale for every element in `x`."""
        n_draws = (x.numel() + 3) // 4
        draws = torch.empty(n_draws, dtype=torch.int64).random_(-(1 << 63), None)
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
        lowest_kept = self._dropped_levels - LEVELS // 2
        factors = torch.empty_like(x, requires_grad=False)
        torch.ge(levels, lowest_kept, out=factors)
        return factors.mul_(self._scale)

    def extra_repr(self) -> str:
        """Show p."""
        return f"p={self.p}"


class FeedForward(nn.Sequential):
    """Position-wise Linear - ReLU - Linear with dropout after the ReLU and at the end."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(
            Linear(config.d_model, config.d_inner),
            nn.ReLU(),
            Dropout(config.dropout),
            Linear(config.d_inner, config.d_model),
            Dropout(config.dropout),
        )


def draw_normal(tensor: Tensor, mean: float, std: float) -> None:
    """Draw from N(mean, std²) in place; on the meta device nothing, where torch would first import its compiler."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, mean, std)


def initialize(model: nn.Module, std: float = WEIGHT_STD) -> None:
    """Draw a model's parameters in place, then call the method `initialize` on each module that has one.

    Weights, embeddings, tables, u and v are from N(0, std²), embedding's and softmax's projections from N(0, 0.01²),
    norms' gains from N(1, std²); biases are zero, also by distance.

    Args:
        model: any model in this package.
        std: standard deviation; 0.02 in the paper's PyTorch code.
    """
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            draw_normal(parameter, 1.0, std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            draw_normal(parameter, 0.0, PROJECTION_STD if "projections." in name else std)
    for module in model.modules():
        getattr(module, "initialize", lambda: None)()
