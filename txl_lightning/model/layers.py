"""One layer of Transformer-XL: attention over memory and segment, then feed-forward."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.model.attention import Attention
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys


class FeedForward(nn.Sequential):
    """Position-wise Linear - ReLU - Linear with dropout after the ReLU and at the end."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.d_inner),
            nn.ReLU(inplace=True),
            Dropout(config.dropout),
            nn.Linear(config.d_inner, config.d_model),
            Dropout(config.dropout),
        )


class TransformerXLLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a LayerNorm after (or before) it.

    post-norm (the paper):  o = LN(h + Attn(h, m)),  h' = LN(o + FF(o))
    pre-norm:               o = h + Attn(LN h, LN m),  h' = o + FF(LN o)

    Args:
        config: sizes, dropout and the place of the LayerNorms.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "B T D"]:
        """Compute the layer's output from its input and the memory of its earlier inputs.

        Args:
            hidden_BTD: input of the layer.
            memory_BMD: its inputs in earlier segments.
            positions: u, v and the encoding of the distances.
            visible: keys that the queries may attend to.
        """
        memory = self.attention_norm(memory_BMD) if self.pre_norm else memory_BMD
        return self.forward_with(lambda queries: self.attention(queries, memory, positions, visible), hidden_BTD)

    def forward_with(
        self, attend: Callable[[Tensor], Tensor], hidden_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Compute the layer with another function in place of its attention.

        Args:
            attend: from the states that queries are projected from to the output of attention.
            hidden_BTD: input of the layer.
        """
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.dropout(attend(self.attention_norm(hidden_BTD)))
            return hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        hidden_BTD = self.attention_norm(hidden_BTD + self.dropout(attend(hidden_BTD)))
        return self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
