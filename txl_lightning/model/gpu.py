"""Widths that a GPU reads fast: zeros pad them to multiples of 8. A CPU gets no padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ALIGNED = 8  # 16-bit numbers: rows that begin at a multiple of 16 bytes are read fast


def is_eager_on_cpu(tensor: Tensor) -> bool:
    """Return whether operations on a tensor run one by one on the CPU, outside a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def n_padding(n: int, x: Tensor) -> int:
    """Return how many zeros pad n to a multiple of `ALIGNED`; 0 on a CPU."""
    if x.device.type == "cpu":
        return 0
    return -n % ALIGNED


def aligned(x: Tensor) -> Tensor:
    """Return x with its last axis padded with zeros to a multiple of `ALIGNED`."""
    n_zeros = n_padding(x.shape[-1], x)
    if n_zeros == 0:
        return x
    return F.pad(x, (0, n_zeros))


def aligned_matrix(x: Tensor, pads_rows: bool) -> Tensor:
    """Return x with its last axis, and with `pads_rows` its rows, padded to multiples of `ALIGNED`."""
    n_zeros = n_padding(x.shape[-1], x)
    n_rows = 0
    if pads_rows:
        n_rows = n_padding(x.shape[-2], x)
    if n_zeros == 0 and n_rows == 0:
        return x
    return F.pad(x, (0, n_zeros, 0, n_rows))


def aligned_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    filling: float = 0.0,
) -> Tensor:
    """Return x W^T + b with a padded number of columns.

    Args:
        x: may be padded already.
        weight: W; its columns may be padded already.
        bias: b.
        filling: value in the result's additional columns.
    """
    x = aligned(x)
    n_outputs = n_padding(len(weight), x)
    n_inputs = x.shape[-1] - weight.shape[1]
    if n_outputs > 0 or n_inputs > 0:
        weight = F.pad(weight, (0, n_inputs, 0, n_outputs))
    if bias is not None and n_outputs > 0:
        bias = F.pad(bias, (0, n_outputs), value=filling)
    return F.linear(x, weight, bias)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Return x W^T + b by `aligned_product`."""
    return aligned_product(x, weight, bias)[..., : len(weight)]


class Linear(nn.Linear):
    """torch.nn.Linear by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return x W^T + b."""
        return linear(input, self.weight, self.bias)
