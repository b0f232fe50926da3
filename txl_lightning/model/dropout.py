"""Dropout that is fast on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 1 << 16


class Dropout(nn.Module):
    """Inverted dropout: each element is zeroed with probability p, the others are divided by 1 - p.

    On CPU torch draws one random number per element, which can cost more than the matrix products of a layer.
    Here one 64-bit draw of the same generator decides four elements, so p is rounded to a multiple of 2^-16
    (0.1 becomes 0.100006, and the scale follows). On other devices, and when compiled, it is torch's dropout.

    Args:
        p: probability of zero, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of `x` in training; return `x` itself in evaluation."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped_levels = min(max(round(self.p * LEVELS), 1), LEVELS - 1)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
        keep = torch.ge(levels, dropped_levels - LEVELS // 2, out=torch.empty_like(x, requires_grad=False))
        return x * keep.mul_(LEVELS / (LEVELS - dropped_levels))

    def extra_repr(self) -> str:
        """Show p."""
        return f"p={self.p}"
