"""Attention with linear biases of Press et al. 2022 (ALiBi), and without positions (NoPE; Kazemnejad et al. 2023)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from txl_lightning.model.encodings.base import Encoding, LayerPositions, register_encoding
from txl_lightning.model.positions import distances_of_keys


@register_encoding("alibi", "ad", extrapolates=True)
class AlibiEncoding(Encoding):
    """A_ij = q_i·k_j / sqrt(E) - m_h (i - j), with fixed slopes m_h; the bias is term (d)."""

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return the biases of the distances K, …, 0, the same in all layers."""
        distances_S = distances_of_keys(n_keys, clamp_len, like)
        scale = self.d_head**0.5  # attention divides all logits by sqrt(E)
        bias_HS = slopes(self.n_head, distances_S)[:, None] * (-scale * distances_S)
        return [LayerPositions(bias_HS=bias_HS.to(like.dtype))] * self.n_layer


def slopes(n_head: int, like: Tensor) -> Float[Tensor, " H"]:
    """Return m_h = 2^(-8h/H), h = 1, …, H, for H a power of two.

    For other H: the slopes of the power of two below H, then every second slope of the power of two above H.
    """
    power = 1 << (n_head.bit_length() - 1)
    heads = torch.arange(n_head, dtype=like.dtype, device=like.device)
    shares = torch.cat([(heads[:power] + 1) / power, (heads[: n_head - power] * 2 + 1) / (2 * power)])
    return 2.0 ** (-8 * shares)


@register_encoding("none", extrapolates=True)
class NoEncoding(Encoding):
    """A_ij = q_i·k_j / sqrt(E). Only the causal mask tells a token how many tokens stand before it."""
