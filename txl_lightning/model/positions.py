"""Positions and masks: which keys a query may attend to, how far away they are, and their encoding."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoid(positions_S: Float[Tensor, " S"], d_model: int) -> Float[Tensor, "S D"]:
    """R_s = [sin(s·f_0), …, sin(s·f_{D/2-1}), cos(s·f_0), …], f_k = 10000^(-2k/D) (Vaswani et al. 2017 §3.5).

    Sines first, then cosines, not interleaved, as in the paper's code.
    """
    exponents = torch.arange(0, d_model, 2, dtype=positions_S.dtype, device=positions_S.device) / d_model
    angles = positions_S[:, None] * 10000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def sinusoids_of_distances(n_keys: int, d_model: int, clamp_len: int, like: Tensor) -> Float[Tensor, "S D"]:
    """The sinusoids of distances K, K-1, …, 0, clamped from above by `clamp_len` (S = K + 1).

    Distance K belongs to no key: its row makes the row-wise shift of `relative_shift` a view.
    The angles are computed in float64 and rounded once to the type of `like`.
    """
    precise = torch.float32 if like.device.type == "mps" else torch.float64
    distances = torch.arange(n_keys, -1, -1, dtype=precise, device=like.device)
    if clamp_len > 0:
        distances = distances.clamp(max=clamp_len)
    return sinusoid(distances, d_model).to(like.dtype)


def relative_shift(scores_XTS: Float[Tensor, "X T S"]) -> Float[Tensor, "X T K"]:
    """Turn columns that count distances into columns that count keys, without a copy (appendix B).

    Row i of the input holds a value for the distances K, K-1, …, 0; row i of the output holds at column j
    the value for the distance M + i - j. Read as one line of T·(K+1) numbers, row i's first key lies i·K
    behind position T, so the shift is a view that starts T numbers later. Entries with j > M + i are
    leftovers of the next row, which the causal mask must hide.
    """
    X, T, S = scores_XTS.shape
    return scores_XTS.view(X, T * S)[:, T:].view(X, T, S - 1)


def attention_mask(
    n_queries: int, n_memory: int, filled: int, attention_len: int | None, like: Tensor
) -> Float[Tensor, "T K"]:
    """0 where query i may attend to key j and -inf elsewhere, for K = M + T keys.

    The distance is M + i - j. Keys in the future (distance < 0), memory that is not filled, and, with
    `attention_len`, keys at that distance or farther (`same_length`) are hidden.
    """
    queries = torch.arange(n_memory, n_memory + n_queries, device=like.device)[:, None]
    keys = torch.arange(n_memory + n_queries, device=like.device)[None, :]
    visible = (keys <= queries) & (keys >= n_memory - filled)
    if attention_len is not None:
        visible &= queries - keys < attention_len
    mask_TK = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask_TK.masked_fill(~visible, float("-inf"))
