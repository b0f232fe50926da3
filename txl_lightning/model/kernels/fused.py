"""Attention by torch's scaled_dot_product_attention, which stores no probabilities; rows that a GPU reads fast."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from txl_lightning.model.positions import VisibleKeys, relative_shift

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


class Factors(NamedTuple):
    """Factors of the scores, divided by sqrt(E), for a part of the queries and heads.

        A_ij = content_i·k_j + position_i·r_{i-j} + bias_{i-j}

    Args:
        content: (q_i + u) / sqrt(E), [H, B, T, E]; B and T are 1 without term (a).
        k_HBKE: keys.
        position: (q_i + v) / sqrt(E), [H, B, T, E]; B and T are 1 without term (b). None without r.
        r_HSE: vectors of the distances K, …, 0; None for none.
        bias_HS: biases of the distances; None for none.
        values_HBKE: values.
        visible: keys that each query may attend to.
    """

    content: Tensor
    k_HBKE: Tensor
    position: Tensor | None
    r_HSE: Tensor | None
    bias_HS: Tensor | None
    values_HBKE: Tensor
    visible: VisibleKeys

    def part(self, queries: slice, heads: slice = slice(None)) -> Factors:
        """Keep some queries and heads, and the keys up to that of the last of these queries."""
        T, K = self.visible.mask_TK.shape[-2:]
        n_keys = K - T + queries.stop

        def rows(x: Tensor) -> Tensor:
            return x[heads] if x.shape[2] == 1 else x[heads, :, queries]

        position = None if self.position is None else rows(self.position)
        r_HSE, bias_HS = (x if x is None else x[heads, -n_keys - 1 :] for x in (self.r_HSE, self.bias_HS))
        k_HBKE, values_HBKE = (x[heads, :, :n_keys] for x in (self.k_HBKE, self.values_HBKE))
        visible = self.visible.part(queries, n_keys)
        return Factors(rows(self.content), k_HBKE, position, r_HSE, bias_HS, values_HBKE, visible)

    def by_key(self, aligned: bool = False) -> Float[Tensor, "H B_or_1 T K"] | None:
        """Return terms (b) and (d) by key, a view; None for none.

        Entries of future keys are other numbers, which the mask must hide.

        Args:
            aligned: pad the distances to a multiple of `ALIGNED`, for the products of forward and backward pass.
        """
        H, (T, K), r_HSE = len(self.values_HBKE), self.visible.mask_TK.shape[-2:], self.r_HSE
        by_distance = None if self.bias_HS is None else self.bias_HS[:, None].clone()
        padding = -(K + 1) % ALIGNED if aligned and by_distance is None else 0
        if self.position is not None and r_HSE is not None:
            of_heads = -r_HSE.shape[-1] % ALIGNED if aligned else 0
            position = F.pad(self.position, (0, of_heads)) if of_heads else self.position
            r_HSE = F.pad(r_HSE, (0, of_heads, 0, padding)) if padding or of_heads else r_HSE
            product = torch.bmm(position.flatten(1, 2), r_HSE.mT)
            by_distance = product if by_distance is None else product.add_(by_distance)
        if by_distance is None:
            return None
        if by_distance.shape[1] == 1:
            by_distance = by_distance.expand(-1, T, -1).contiguous()
        return relative_shift(by_distance.view(-1, T, by_distance.shape[2]), K).unflatten(0, (H, -1))

    def added(self, aligned: bool = False) -> Float[Tensor, "H B T K"]:
        """Return what is added to the products of `content` and keys: terms (b) and (d), and the mask.

        Args:
            aligned: as for `by_key`, and without writing in place, which has no gradient.
        """
        (H, B, K, _), mask_TK = self.values_HBKE.shape, self.visible.mask_TK
        by_key = self.by_key(aligned and self.visible.causal)
        # In one type: autocast would convert the mask for every head and stream, a sum of two types all scores.
        mask_TK = mask_TK.to(self.values_HBKE.dtype if by_key is None else by_key.dtype)
        if by_key is None:
            by_key = mask_TK.expand(B, -1, -1)
        elif aligned or mask_TK.ndim == 3:
            by_key = by_key + mask_TK
        else:
            first = self.visible.first_hidden
            by_key[..., first:].add_(mask_TK[:, first:])
        return by_key.expand(H, B, mask_TK.shape[-2], K)


def factors(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    values_HBKE: Float[Tensor, "H B K E"],
    visible: VisibleKeys,
    bias_HS: Float[Tensor, "H S"] | None = None,
    terms: str = "abcd",
) -> Factors:
    """Return the factors of `attention.scores`. Queries and biases are scaled, as they are smaller than the scores."""
    scale = q_HBTE.shape[-1] ** -0.5
    q, u, v, bias_HS = (None if x is None else x * scale for x in (q_HBTE, u_HE, v_HE, bias_HS))
    content = _sum(q if "a" in terms else None, u)
    position = None if r_HSE is None else _sum(q if "b" in terms else None, v)
    if content is None:
        content = q_HBTE.new_zeros(len(q_HBTE), 1, 1, q_HBTE.shape[-1])
    return Factors(content, k_HBKE, position, r_HSE, bias_HS, values_HBKE, visible)


def _sum(q_HBTE: Tensor | None, bias_HE: Tensor | None) -> Tensor | None:
    bias_H11E = None if bias_HE is None else bias_HE[:, None, None]
    return bias_H11E if q_HBTE is None else q_HBTE if bias_H11E is None else q_HBTE + bias_H11E


def attend(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    values_HBKE: Float[Tensor, "H B K E"],
    visible: VisibleKeys,
    dropout: nn.Module,
    bias_HS: Float[Tensor, "H S"] | None = None,
    terms: str = "abcd",
) -> Float[Tensor, "H B T E"]:
    """Return Σ_j softmax_j(A_i) value_j over the visible keys j.

    A_ij is `attention.scores` of the same arguments; `dropout` is that of the probabilities.
    """
    of_scores = factors(q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, values_HBKE, visible, bias_HS, terms)
    # On a CPU only the plain way has a gradient for the bias.
    p: Any = dropout.p if dropout.training else 0.0
    with sdpa_kernel(WITH_GRADIENT):
        return attend_fused(of_scores, p, aligned=True)


def attend_fused(factors: Factors, p: float = 0.0, aligned: bool = False) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(scores)) · values; terms (b) and (d) are a bias of torch's kernel.

    Args:
        factors: of the scores.
        p: probability of the dropout.
        aligned: pad distances and heads with zeros to a multiple of `ALIGNED`: torch computes other heads without the
            efficient kernel, in float32.
    """
    (H, B, _, E), T = factors.values_HBKE.shape, factors.visible.mask_TK.shape[-2]
    added_HBTK = factors.added(aligned)
    query, keys, values = factors.content.expand(H, B, T, E), factors.k_HBKE, factors.values_HBKE
    if aligned and E % ALIGNED:
        query, keys, values = (F.pad(x, (0, -E % ALIGNED)) for x in (query, keys, values))
    heads_HBTE = F.scaled_dot_product_attention(query, keys, values, attn_mask=added_HBTK, dropout_p=p, scale=1.0)
    return heads_HBTE[..., :E]
