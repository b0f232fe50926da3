"""Attention by torch's scaled_dot_product_attention, which stores no probabilities; rows that a GPU reads fast."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# With a gradient for the bias; cuDNN's kernel has none.
WITH_GRADIENT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
ALIGNED = 8  # numbers: a row that begins at a multiple of 16 bytes is read fast, and at all by the efficient kernel


def missing(n: int, x: Tensor) -> int:
    """Return how many numbers a row of n lacks to a multiple of `ALIGNED`; on a CPU none."""
    return 0 if x.device.type == "cpu" else -n % ALIGNED


def aligned(x: Float[Tensor, "*n width"]) -> Float[Tensor, "*n more"]:
    """Return x with its last axis padded with zeros to a multiple of `ALIGNED`; on a CPU as it is."""
    more = missing(x.shape[-1], x)
    return F.pad(x, (0, more)) if more else x


def aligned_product(
    x: Float[Tensor, "*n width"], weight: Float[Tensor, "out D"], bias: Tensor | None = None, filling: float = 0.0
) -> Float[Tensor, "*n more"]:
    """Return x W^T + b; on a GPU widths that are no multiple of `ALIGNED`, which slow the product, are padded.

    Args:
        x: may be padded already.
        weight: W; its columns may be padded already.
        bias: b.
        filling: what the result's additional columns have.
    """
    x, more = aligned(x), missing(len(weight), x)
    if more or x.shape[-1] > weight.shape[1]:
        weight = F.pad(weight, (0, x.shape[-1] - weight.shape[1], 0, more))
        bias = bias if bias is None or not more else F.pad(bias, (0, more), value=filling)
    return F.linear(x, weight, bias)


def linear(x: Float[Tensor, "*n width"], weight: Float[Tensor, "out D"], bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, by `aligned_product`."""
    return aligned_product(x, weight, bias)[..., : len(weight)]


class Linear(nn.Linear):
    """torch.nn.Linear by `linear`."""

    def forward(self, input: Float[Tensor, "*n width"]) -> Float[Tensor, "*n out"]:
        """Return x W^T + b."""
        return linear(input, self.weight, self.bias)


def is_eager_on_cpu(tensor: Tensor) -> bool:
    """Return whether operations on a tensor run one by one on the CPU: not on another device or in a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def sdpa(
    query_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    values_HBKE: Float[Tensor, "H B K E"],
    added_HBTK: Float[Tensor, "H B T K"],
    p: float = 0.0,
) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(query·k + added)) · values, by torch's kernel; p is the dropout's.

    On a GPU heads are padded with zeros to a multiple of `ALIGNED`: torch computes others without the efficient
    kernel, in float32.
    """
    query_HBTE, k_HBKE, values = (aligned(x) for x in (query_HBTE, k_HBKE, values_HBKE))
    # On a CPU only the plain way has a gradient for the bias.
    everywhere = torch.is_grad_enabled() or query_HBTE.device.type != "cpu"
    with sdpa_kernel(WITH_GRADIENT) if everywhere else nullcontext():
        heads_HBTE = F.scaled_dot_product_attention(
            query_HBTE, k_HBKE, values, attn_mask=added_HBTK, dropout_p=p, scale=1.0
        )
    return heads_HBTE[..., : values_HBKE.shape[-1]]
