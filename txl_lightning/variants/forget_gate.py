"""Forgetting attention (FoX; Lin et al. 2025, arXiv:2503.02130): later tokens' gates let keys be forgotten.

    f_t  = σ(w·x_t + b)                             c_t = Σ_{l≤t} log f_l
    A_ij gains D_ij = Σ_{j<l≤i} log f_l = c_i - c_j

x_t is a token's input to the layer, and every head has separate gates. c_i shifts all logits for query i alike, so it
cancels in the softmax. What is left depends on the key alone, as u·k_j does: a part of term (c) that reads the text,
computed from one running sum per segment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import Length
from txl_lightning.model.attention import Attention, masked_scores
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.shapes import Heads, Hidden, Scores, States
from txl_lightning.model.transformer_xl import TransformerXL, TransformerXLLayer, register_variant


@dataclass
class ForgetGateConfig(TransformerXLConfig):
    """Options for `variant=forget_gate`.

    Args:
        forget_len: most tokens over which a head forgets before training; heads begin with 1 to `forget_len`, in
            geometric steps. 0 begins with gates at 1/2.
    """

    forget_len: Length = 0
    initial_only: ClassVar = frozenset({"forget_len"})


class ForgettingAttention(Attention):
    """Attention with D_ij, as written, not by torch's kernel; it has (D + 1)·H parameters more."""

    def __init__(self, config: ForgetGateConfig) -> None:
        super().__init__(config)
        self.forget = nn.Linear(config.d_model, config.n_head)
        self.forget_len = config.forget_len

    def initialize(self) -> None:
        """Set the gates' biases b, for `forget_len` > 0."""
        if self.forget_len:
            log_t_H = torch.linspace(
                0.0, math.log(self.forget_len), self.n_head, dtype=torch.float64
            )
            with torch.no_grad():
                one_over_t_H = (-log_t_H).exp()
                self.forget.bias.copy_(-one_over_t_H.expm1().log())

    def heads(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Heads:
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        x = self.attention_inputs(q_HBTE, kv_PHBKE, positions, visible)
        scores_HBTK = masked_scores(x) + self.forgotten(hidden_BTD, memory_BMD)
        return self.dropout(scores_HBTK.softmax(-1)).to(x.values_HBKE.dtype) @ x.values_HBKE

    def logits(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> Scores:
        """Return A_ij with forgetting, or single terms without it."""
        logits_HBTK = super().logits(hidden_BTD, memory_BMD, positions, visible, terms)
        if terms is not None:
            return logits_HBTK
        return logits_HBTK + self.forgotten(hidden_BTD, memory_BMD)

    def forgotten(self, hidden_BTD: Hidden, memory_BMD: States) -> Tensor:
        """Return what D_ij adds to every key's scores (`forgetting`)."""
        gates_BKH = self.forget(torch.cat([memory_BMD, hidden_BTD], dim=1))
        return forgetting(gates_BKH.permute(2, 0, 1))[:, :, None]


def forgetting(logits_HBK: Float[Tensor, "H B K"]) -> Float[Tensor, "H B K"]:
    """Return c_K - c_j = Σ_{j<l≤K} log σ(logit_l) for every key j: D_ij without the part that query i alone decides.

    Summed from the newest token, so near keys keep their precision and nothing depends on what came before a key; at
    least in float32, because differences between long sums are what counts.
    """
    precise = torch.promote_types(logits_HBK.dtype, torch.float32)
    after_HBK = F.pad(F.logsigmoid(logits_HBK[..., 1:].to(precise)), (0, 1))
    return after_HBK.flip(-1).cumsum(-1).flip(-1)


class ForgetGateLayer(TransformerXLLayer):
    """Layer with `ForgettingAttention`."""

    attention_class = ForgettingAttention


@register_variant("forget_gate")
class ForgetGateTransformerXL(TransformerXL):
    """Transformer-XL with `ForgettingAttention`.

    With `forget_len` > 0 the gates' biases start at b = -log(exp(1 / t) - 1), so that σ(b)^t = 1/e, with lengths t = 1,
    …, `forget_len` in geometric steps: the paper starts gates with only a bias like this. In its code gates that read
    the text begin with b = 0, as `forget_len=0` does.
    """

    config_class = ForgetGateConfig
    layer_class = ForgetGateLayer
    cannot: ClassVar = {"cached inference": "gates are kept for no key"}
