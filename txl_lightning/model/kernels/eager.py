"""The attention of section 3.3 in torch's own operations; every other kernel is compared with it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.model.kernels.factors import Factors


def logits(factors: Factors) -> Float[Tensor, "X T K"]:
    """Return A_ij / sqrt(E) = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E), and -inf where key j is hidden.

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
        content_XTK = torch.baddbmm(mask_XTK, query.expand(H, B, T, E).flatten(0, 1), keys.flatten(0, 1).mT)
    by_key = distances.by_key(T)
    if by_key is None:
        return content_XTK
    if len(by_key) == len(content_XTK):
        return content_XTK.add_(by_key)
    return (content_XTK.unflatten(0, (H, B)) + by_key[:, None]).flatten(0, 1)


def weighted(probabilities_XTK: Float[Tensor, "X T K"], values: Float[Tensor, "H B K E"]) -> Float[Tensor, "H B T E"]:
    """Return the sum of the values, weighted by the probabilities."""
    return torch.bmm(probabilities_XTK, values.flatten(0, 1)).unflatten(0, values.shape[:2])


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(logits)) · values."""
    logits_XTK = logits(factors)
    with torch.autocast("cuda", enabled=False):  # it would keep all probabilities in float32
        probabilities_XTK = dropout(torch.softmax(logits_XTK, dim=-1))
    return weighted(probabilities_XTK, factors.values)
