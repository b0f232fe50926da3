"""Rotary encoding of Su et al. 2021 (RoPE)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from txl_lightning.model.encodings.base import Encoding, register_encoding

BASE = 10000.0


@register_encoding("rope")
class RotaryEncoding(Encoding):
    """A_ij = (R_i q_i)·(R_j k_j) / sqrt(E): R_p rotates the pair (x_f, x_{f+E/2}) by p·10000^(-2f/E).

    Memory keeps hidden states and cached inference unrotated keys. Both are rotated when they are read, by their
    distance to the newest token.
    """

    def angles(self, distances_S: Float[Tensor, " S"]) -> Float[Tensor, "S F"]:
        """Return p·10000^(-2f/E) for the positions p = -distance."""
        exponents = torch.arange(0, self.d_head, 2, dtype=distances_S.dtype, device=distances_S.device) / self.d_head
        return -distances_S[:, None] * BASE**-exponents
