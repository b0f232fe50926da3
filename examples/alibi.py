"""A custom position encoding: ALiBi (Press et al. 2021). It is relative, so memory works with it.

    export TXL_ENCODINGS=examples/alibi.py
    txl train encoding.name=alibi hydra.run.dir=runs/alibi
    txl evaluate checkpoint=runs/alibi/checkpoints/best.ckpt mem_len=256

All commands, multiruns and `resume` find it through the variable. It has no parameters.
"""

import torch
from torch import Tensor

from txl_lightning import Encoding, LayerPositions, register_encoding


@register_encoding("alibi", terms="ad")
class ALiBi(Encoding):
    """A_ij = q_i·k_j / sqrt(E) - m_h (i - j), with the slopes m_h = 2^(-8h/H) of the heads h = 1, …, H."""

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return the biases of the distances K, …, 0 (column S - 1 is distance 0), the same in all layers."""
        precise = torch.promote_types(like.dtype, torch.float32)
        distances = torch.arange(n_keys, -1, -1, dtype=precise, device=like.device)
        if clamp_len > 0:
            distances = distances.clamp(max=clamp_len)
        slopes = 2.0 ** (-8 / self.n_head * torch.arange(1, self.n_head + 1, dtype=precise, device=like.device))
        bias_HS = -slopes[:, None] * distances * self.d_head**0.5  # attention divides the whole score by sqrt(E)
        return [LayerPositions(bias_HS=bias_HS.to(like.dtype))] * self.n_layer
