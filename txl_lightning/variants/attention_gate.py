"""Gates on attention's output (Qiu et al. 2025, arXiv:2505.06708), before the output projection.

Y_i ⊙ σ(x_i W_g)        x: input of the layer;  Y: outputs of the heads
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import one_of
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.shapes import Heads, Hidden, States
from txl_lightning.model.transformer_xl import TransformerXL, TransformerXLLayer, register_variant


@dataclass
class AttentionGateConfig(TransformerXLConfig):
    """Options for `variant=attention_gate`.

    Args:
        gates: one gate per token and `head`, or for each of a head's E elements (`element`).
    """

    gates: Annotated[str, one_of("head", "element")] = "head"


class GatedAttention(Attention):
    """Attention whose heads are multiplied by gates; D·H or D·H·E parameters more."""

    def __init__(self, config: AttentionGateConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(
            config.d_model,
            config.n_head * (config.d_head if config.gates == "element" else 1),
            False,
        )

    def heads(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Heads:
        gates_BTHE = self.gate(hidden_BTD).sigmoid().unflatten(-1, (self.n_head, -1))
        return super().heads(hidden_BTD, memory_BMD, positions, visible) * gates_BTHE.permute(
            2, 0, 1, 3
        )


class AttentionGateLayer(TransformerXLLayer):
    """Layer with `GatedAttention`."""

    attention_class = GatedAttention


@register_variant("attention_gate")
class AttentionGateTransformerXL(TransformerXL):
    """Transformer-XL with `GatedAttention`."""

    config_class = AttentionGateConfig
    layer_class = AttentionGateLayer
    cannot: ClassVar = {
        "cached inference": "gates read the input of a layer, which cached inference does not keep"
    }
