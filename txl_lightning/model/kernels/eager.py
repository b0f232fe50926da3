"""The attention of section 3.3 in torch's own operations, and the factors that every kernel computes it from.

Every other kernel is compared with this one.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.model.positions import VisibleKeys, relative_shift


def logits(factors: Factors) -> Float[Tensor, "X T K"]:
    """Return A_ij = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E), and -inf where key j is hidden from query i.

    X = H·B matrices are multiplied at once.
    """
    query, keys, _, distances, visible = factors
    (H, B, K, E), T = keys.shape, visible.mask_TK.shape[-2]
    # In the type of the products, which is exact: autocast would convert the mask for every head and stream.
    mask_TK = visible.mask_TK if query is None else visible.mask_TK.to(keys.dtype)
    mask_XTK = mask_TK.expand(H, B, T, K).flatten(0, 1)
    if query is None:
        content_XTK = mask_XTK.clone()
    else:
        rows_XTE, keys_XEK = query.expand(H, B, T, E).flatten(0, 1), keys.flatten(0, 1).mT
        content_XTK = torch.baddbmm(mask_XTK, rows_XTE, keys_XEK)
    by_key = distances.by_key(T)
    if by_key is None:
        return content_XTK
    if by_key.shape[0] == content_XTK.shape[0]:  # `len` would fix the batch size in an exported graph
        return content_XTK.add_(by_key)
    return (content_XTK.unflatten(0, (H, B)) + by_key[:, None]).flatten(0, 1)


def weighted(probabilities_XTK: Float[Tensor, "X T K"], values: Float[Tensor, "H B K E"]) -> Float[Tensor, "H B T E"]:
    """Return the sum of the values, weighted by the probabilities, which get their type."""
    return torch.bmm(probabilities_XTK.to(values.dtype), values.flatten(0, 1)).unflatten(0, values.shape[:2])


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(logits)) · values."""
    logits_XTK = logits(factors)
    with torch.autocast("cuda", enabled=False):  # it would keep all probabilities in float32
        probabilities_XTK = dropout(torch.softmax(logits_XTK, dim=-1))
    return weighted(probabilities_XTK, factors.values)


class Factors(NamedTuple):
    """Input of a kernel, which returns Σ_j softmax_j(logits_i) v_j.

        logits_ij = query_i·keys_j + distances_{i-j},    -inf where key j is hidden from query i

    Args:
        query: (q_i + u) / sqrt(E), terms (a) and (c), [H, B, T, E]; B and T are 1 without (a). None without both.
        keys: k_j, [H, B, K, E], rotated already where the encoding rotates; not read without a query.
        values: v_j, [H, B, K, E].
        distances: terms (b) and (d), computed by the kernel for as many queries and keys as it needs.
        visible: keys that each query may attend to.
    """

    query: Tensor | None
    keys: Tensor
    values: Tensor
    distances: DistanceFactors
    visible: VisibleKeys

    def by_key(self) -> Float[Tensor, "H B_or_1 T_or_1 K"] | None:
        """Return terms (b) and (d) by key, as they broadcast; None for none."""
        by_key = self.distances.by_key(self.visible.mask_TK.shape[-2])
        return by_key if by_key is None else by_key.unflatten(0, (self.values.shape[0], -1))

    def part(self, queries: slice, heads: slice) -> Factors:
        """Keep some queries and heads, and the keys up to that of the last of these queries."""
        T, K = self.visible.mask_TK.shape[-2:]
        n_keys = K - T + queries.stop
        return Factors(
            _rows(self.query, heads, queries),
            self.keys[heads, :, :n_keys],
            self.values[heads, :, :n_keys],
            self.distances._replace(rows=_rows(self.distances.rows, heads, queries)).part(n_keys, heads),
            self.visible.part(queries, n_keys),
        )


class DistanceFactors(NamedTuple):
    """Terms (b) and (d) of the logits, (q_i + v)·r_s / sqrt(E), by distance s; computed for the part that is asked for.

    Args:
        rows: (q_i + v) / sqrt(E), [H, B, T, E]; streams and tokens have size 1 without term (b). None without r.
        r_HSE: r_s = W_{k,R} R_s, or a trained vector, of the distances s = K, …, 0; None for none.
        bias_HS: biases of the distances, divided by sqrt(E), in place of v·r_s / sqrt(E); None for none.
    """

    rows: Tensor | None = None
    r_HSE: Tensor | None = None
    bias_HS: Tensor | None = None

    def part(self, n_keys: int, heads: slice = slice(None)) -> DistanceFactors:
        """Keep the distances K, …, 0 with K = `n_keys`, and some of the heads; the rows stay."""
        r_HSE, bias_HS = (x if x is None else x[heads, -n_keys - 1 :] for x in (self.r_HSE, self.bias_HS))
        return DistanceFactors(self.rows, r_HSE, bias_HS)

    def by_key(self, n_queries: int) -> Float[Tensor, "X_or_H T K"] | None:
        """Return the logits of T queries by key; H instead of H·B matrices if no query enters them; None for none.

        Entries of future keys are other numbers, which the mask must hide.
        """
        by_distance = None if self.bias_HS is None else self.bias_HS[:, None].clone()
        if self.rows is not None and self.r_HSE is not None:
            product = _products(self.rows.flatten(1, 2), self.r_HSE)
            by_distance = product if by_distance is None else product.add_(by_distance)
        if by_distance is None:
            return None
        if by_distance.shape[1] == 1:
            by_distance = by_distance.expand(-1, n_queries, -1).contiguous()
        return relative_shift(by_distance.view(-1, n_queries, by_distance.shape[2]))


def _products(rows_HXE: Tensor, r_HSE: Tensor) -> Float[Tensor, "H X S"]:
    """Return the products of X = B·T rows and the vectors r of each head; in bfloat16 on the CPU r is not copied."""
    S, E = r_HSE.shape[1:]
    if r_HSE.dtype == torch.bfloat16 and r_HSE.device.type == "cpu" and not torch.compiler.is_compiling():
        is_view = r_HSE.stride()[1:] == (E, 1) and r_HSE.stride(0) > S * E
        if is_view and rows_HXE.shape[1] < S:
            return torch.stack([rows_XE @ r_SE.T for rows_XE, r_SE in zip(rows_HXE, r_HSE, strict=True)])
        if rows_HXE.shape[1] == 1 and _has_amx():  # there a single column reads the table faster than a single row
            return torch.bmm(r_HSE, rows_HXE.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(rows_HXE, r_HSE.transpose(1, 2))


@cache
def _has_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


def _rows(x: Tensor | None, heads: slice, queries: slice) -> Tensor | None:
    """Return some heads and queries of a factor, whose queries have size 1 if they are all alike."""
    return x if x is None else x[heads] if x.shape[2] == 1 else x[heads, :, queries]
