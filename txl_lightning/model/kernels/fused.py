"""Attention without gradient by torch's fused kernel, which reads keys and values in place."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from txl_lightning.model.kernels.eager import Factors

# Without cuDNN's attention, which torch prefers on an H100: it plans every new length of the memory anew.
ON_A_GPU = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return softmax(query · keys + bias) · values.

    It has no gradient for its bias on the CPU, so training cannot use it. In bfloat16, where batched products copy keys
    and values first, it takes a half to a ninth of the time; in float32 products of many queries are faster.
    """
    query, keys, values, *_ = factors
    assert query is not None
    bias = bias_of(factors)
    query = query.expand(*bias.shape[:3], -1)
    with sdpa_kernel(ON_A_GPU) if values.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=1.0)


def bias_of(factors: Factors) -> Float[Tensor, "H B T K"]:
    """Return what is added to the content logits: `Factors.by_key`, and the mask."""
    values, visible, by_key = factors.values, factors.visible, factors.by_key()
    (H, B), mask_TK = values.shape[:2], visible.mask_TK
    if by_key is None:
        bias = mask_TK.to(values.dtype)  # autocast would convert it for every head and stream
    elif mask_TK.ndim == 3:
        bias = by_key + mask_TK.to(by_key.dtype)  # a sum of two types copies the larger, here all logits
    else:
        bias, first = by_key, visible.first_hidden
        bias[..., first:].add_(mask_TK[:, first:].to(by_key.dtype))
    if bias.is_cuda:  # a view, and the kernel refuses one that begins at an address it cannot read at once
        bias = bias.clone(memory_format=torch.contiguous_format)  # before it is expanded
    return bias.expand(H, B, *mask_TK.shape[-2:])
