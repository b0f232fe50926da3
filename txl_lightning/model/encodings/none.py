"""No positional encoding (NoPE; Kazemnejad et al. 2023)."""

from __future__ import annotations

from txl_lightning.model.encodings.base import Encoding, register_encoding


@register_encoding("none", extrapolates=True)
class NoEncoding(Encoding):
    """A_ij = q_i·k_j / sqrt(E). Only the causal mask tells a token how many tokens stand before it."""
