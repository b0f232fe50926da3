"""A custom variant: LayerScale (Touvron et al. 2021, arXiv:2103.17239). New layers change their input little.

    export TXL_GUESTS=examples/layer_scale.py
    txl train variant=layer_scale variant.start=1e-2 hydra.run.dir=runs/layer_scale
    txl evaluate checkpoint=runs/layer_scale/checkpoints/best.ckpt

All commands, multiruns and `resume` find it through the variable.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl_lightning import TransformerXL, TransformerXLConfig, register_variant
from txl_lightning.model.transformer_xl import TransformerXLLayer


@dataclass
class LayerScaleConfig(TransformerXLConfig):
    """Options for `variant=layer_scale`: `start`, every scale's first value. Layers are pre-norm."""

    start: float = 0.1


class LayerScaleLayer(TransformerXLLayer):
    """o = h + λ₁ ⊙ Attn(LN h, LN m)        h' = o + λ₂ ⊙ FF(LN o)        2·D parameters more."""

    def __init__(self, config: LayerScaleConfig) -> None:
        super().__init__(config)
        self.pre_norm = True
        self.start = config.start
        self.attention_scale = nn.Parameter(
            torch.empty(config.d_model)
        )  # vectors: Muon is for matrices
        self.feed_forward_scale = nn.Parameter(torch.empty(config.d_model))

    def initialize(self) -> None:
        nn.init.constant_(self.attention_scale, self.start)
        nn.init.constant_(self.feed_forward_scale, self.start)

    def after_attention(self, hidden_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        hidden_BTD = hidden_BTD + self.attention_scale * self.dropout(attended_BTD)
        return hidden_BTD + self.feed_forward_scale * self.feed_forward(
            self.feed_forward_norm(hidden_BTD)
        )


@register_variant("layer_scale")
class LayerScaleTransformerXL(TransformerXL):
    """Transformer-XL with `LayerScaleLayer`s."""

    config_class = LayerScaleConfig
    layer_class = LayerScaleLayer
