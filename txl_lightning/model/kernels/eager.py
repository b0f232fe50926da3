"""The attention of section 3.3 in torch's own operations, and the factors that every kernel computes it from.

Every other kernel is compared with this one.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from txl_lightning.model.positions import VisibleKeys, relative_shift

# Without cuDNN's attention, which torch prefers on an H100: it plans every new length of the memory anew.
FUSED_ON_A_GPU = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Factors(NamedTuple):
    """Input of a kernel, which returns Σ_j softmax_j(logits_i) v_j.

        logits_ij = query_i·keys_j + rows_i·r_{i-j} + bias_{i-j},    -inf where key j is hidden from query i

    Args:
        query: (q_i + u) / sqrt(E), terms (a) and (c), [H, B, T, E]; B and T are 1 without (a). None without both.
        keys: k_j, [H, B, K, E], rotated already where the encoding rotates; not read without a query.
        values: v_j, [H, B, K, E].
        visible: keys that each query may attend to.
        rows: (q_i + v) / sqrt(E), terms (b) and (d), [H, B, T, E]; B and T are 1 without (b). None without r.
        r_HSE: r_s = W_{k,R} R_s, or a trained vector, of the distances s = K, …, 0; None for none.
        bias_HS: biases of the distances, divided by sqrt(E), in place of v·r_s / sqrt(E); None for none.
    """

    query: Tensor | None
    keys: Tensor
    values: Tensor
    visible: VisibleKeys
    rows: Tensor | None = None
    r_HSE: Tensor | None = None
    bias_HS: Tensor | None = None

    def by_key(self) -> Float[Tensor, "H B_or_1 T K"] | None:
        """Return terms (b) and (d) by key, as they broadcast; None for none.

        Entries of future keys are other numbers, which the mask must hide.
        """
        H, T = len(self.values), self.visible.mask_TK.shape[-2]
        by_distance = None if self.bias_HS is None else self.bias_HS[:, None].clone()
        if self.rows is not None and self.r_HSE is not None:
            product = torch.bmm(self.rows.flatten(1, 2), self.r_HSE.mT)
            by_distance = product if by_distance is None else product.add_(by_distance)
        if by_distance is None:
            return None
        if by_distance.shape[1] == 1:
            by_distance = by_distance.expand(-1, T, -1).contiguous()
        return relative_shift(by_distance.view(-1, T, by_distance.shape[2])).unflatten(0, (H, -1))

    def part(self, queries: slice, heads: slice = slice(None)) -> Factors:
        """Keep some queries and heads, and the keys up to that of the last of these queries."""
        T, K = self.visible.mask_TK.shape[-2:]
        n_keys = K - T + queries.stop
        query, rows = (
            x if x is None else x[heads] if x.shape[2] == 1 else x[heads, :, queries] for x in (self.query, self.rows)
        )
        r_HSE, bias_HS = (x if x is None else x[heads, -n_keys - 1 :] for x in (self.r_HSE, self.bias_HS))
        keys, values = self.keys[heads, :, :n_keys], self.values[heads, :, :n_keys]
        return Factors(query, keys, values, self.visible.part(queries, n_keys), rows, r_HSE, bias_HS)


def logits(factors: Factors) -> Float[Tensor, "X T K"]:
    """Return A_ij = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E), and -inf where key j is hidden from query i.

    X = H·B matrices are multiplied at once.
    """
    query, keys, visible = factors.query, factors.keys, factors.visible
    (H, B, K, E), T = keys.shape, visible.mask_TK.shape[-2]
    # In the type of the products, which is exact: autocast would convert the mask for every head and stream.
    mask_TK = visible.mask_TK if query is None else visible.mask_TK.to(keys.dtype)
    mask_XTK = mask_TK.expand(H, B, T, K).flatten(0, 1)
    if query is None:
        content_XTK = mask_XTK.clone()
    else:
        rows_XTE, keys_XEK = query.expand(H, B, T, E).flatten(0, 1), keys.flatten(0, 1).mT
        content_XTK = torch.baddbmm(mask_XTK, rows_XTE, keys_XEK)
    by_key = factors.by_key()
    if by_key is None:
        return content_XTK
    if by_key.shape[1] == B:
        return content_XTK.add_(by_key.flatten(0, 1))
    return (content_XTK.unflatten(0, (H, B)) + by_key).flatten(0, 1)


def weighted(probabilities_XTK: Float[Tensor, "X T K"], values: Float[Tensor, "H B K E"]) -> Float[Tensor, "H B T E"]:
    """Return the sum of the values, weighted by the probabilities, which get their type."""
    return torch.bmm(probabilities_XTK.to(values.dtype), values.flatten(0, 1)).unflatten(0, values.shape[:2])


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(logits)) · values."""
    logits_XTK = logits(factors)
    with torch.autocast("cuda", enabled=False):  # it would keep all probabilities in float32
        probabilities_XTK = dropout(torch.softmax(logits_XTK, dim=-1))
    return weighted(probabilities_XTK, factors.values)


def attend_fused(factors: Factors) -> Float[Tensor, "H B T E"]:
    """Return softmax(logits) · values by torch's fused kernel, which reads keys and values in place; needs a query.

    It has no gradient for its bias on the CPU, so training cannot use it. In bfloat16, where batched products copy keys
    and values first, it takes a half to a ninth of the time; in float32 products of many queries are faster.
    """
    assert factors.query is not None
    bias_HBTK = fused_bias(factors)
    query = factors.query.expand(*bias_HBTK.shape[:3], -1)
    with sdpa_kernel(FUSED_ON_A_GPU) if query.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(query, factors.keys, factors.values, attn_mask=bias_HBTK, scale=1.0)


def fused_bias(factors: Factors) -> Float[Tensor, "H B T K"]:
    """Return what is added to the content logits: terms (b) and (d) by key, and the mask."""
    values, visible, bias = factors.values, factors.visible, factors.by_key()
    mask_TK = visible.mask_TK
    if bias is None:
        bias = mask_TK.to(values.dtype)  # autocast would convert it for every head and stream
    elif mask_TK.ndim == 3:
        bias = bias + mask_TK.to(bias.dtype)  # a sum of two types copies the larger, here all logits
    else:
        first = visible.first_hidden
        bias[..., first:].add_(mask_TK[:, first:].to(bias.dtype))
    if bias.is_cuda:  # a view, and the kernel refuses one that begins at an address it cannot read at once
        bias = bias.clone(memory_format=torch.contiguous_format)  # before it is expanded
    return bias.expand(*values.shape[:2], *mask_TK.shape[-2:])
