"""Gated residual from GTrXL (Parisotto et al. 2019, arXiv:1910.06764, §3.2): a GRU gate replaces every residual sum.

o = GRU(h, Attn(LN h, LN m))        h' = GRU(o, FF(LN o))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.shapes import Hidden
from txl_lightning.model.transformer_xl import TransformerXL, TransformerXLLayer, register_variant

UPDATE_BIAS = 2.0  # b_g


@dataclass
class GRUResidualConfig(TransformerXLConfig):
    """Options for `variant=gru_residual`: none. The layers are pre-norm, whatever `pre_norm` says."""


class GRUGate(nn.Module):
    """GRU gate for a sublayer's input x and output y, with a ReLU on y.

        y'  = relu(y)
        r   = σ(W_r y' + U_r x)        z = σ(W_z y' + U_z x - b_g)
        h   = tanh(W_g y' + U_g (r ⊙ x))
        out = (1 - z) ⊙ x + z ⊙ h

    b_g is trained and starts at 2, so that a new layer nearly returns its input x. 6·D² + D
    parameters.

    Args:
        d_model: D.
    """

    stacked: ClassVar = {
        "gates.weight": 3,
        "input_gates.weight": 2,
    }  # matrices in the rows, for Muon

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gates = nn.Linear(d_model, 3 * d_model, bias=False)  # W_r, W_z, W_g
        self.input_gates = nn.Linear(d_model, 2 * d_model, bias=False)  # U_r, U_z
        self.reset = nn.Linear(d_model, d_model, bias=False)  # U_g
        self.b_g = nn.Parameter(torch.empty(d_model))

    def initialize(self) -> None:
        """Set b_g."""
        nn.init.constant_(self.b_g, UPDATE_BIAS)

    def forward(self, x_BTD: Hidden, y_BTD: Hidden) -> Hidden:
        """Return the gated mean between x and a candidate made from x and y."""
        r, z, h = self.gates(F.relu(y_BTD)).chunk(3, dim=-1)
        of_r, of_z = self.input_gates(x_BTD).chunk(2, dim=-1)
        z = torch.sigmoid(z + of_z - self.b_g)
        h = torch.tanh(h + self.reset(torch.sigmoid(r + of_r) * x_BTD))
        return torch.lerp(
            x_BTD,
            h.to(x_BTD.dtype),
            z.to(x_BTD.dtype),
        )


class GRUResidualLayer(TransformerXLLayer):
    """Pre-norm layer whose two residual sums are gates."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.pre_norm = True
        self.attention_residual = GRUGate(config.d_model)
        self.feed_forward_residual = GRUGate(config.d_model)

    def after_attention(self, hidden_BTD: Hidden, attended_BTD: Hidden) -> Hidden:
        hidden_BTD = self.attention_residual(hidden_BTD, self.dropout(attended_BTD))
        output_BTD = self.feed_forward(self.feed_forward_norm(hidden_BTD))
        return self.feed_forward_residual(hidden_BTD, output_BTD)


@register_variant("gru_residual")
class GRUResidualTransformerXL(TransformerXL):
    """Transformer-XL with `GRUResidualLayer`s."""

    config_class = GRUResidualConfig
    layer_class = GRUResidualLayer
