"""One layer of Transformer-XL: attention over memory and segment, then feed-forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.model.attention import Attention
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels.choice import has_hooks
from txl_lightning.model.positions import VisibleKeys


def make_norm(config: TransformerXLConfig) -> nn.Module:
    """Return a LayerNorm, or an RMSNorm (x / sqrt(mean x² + epsilon) · gain), of width D, as `config.norm` says."""
    kinds = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
    return kinds[config.norm](config.d_model, config.layer_norm_epsilon)


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

    def forward(self, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Compute the output of every position from its input."""
        expand, _, inner_dropout, contract, dropout = self
        inner = expand(hidden_BTD)
        if not torch.compiler.is_compiling() and (has_hooks(expand) or has_hooks(inner_dropout)):
            inner = inner_dropout(F.relu(inner))  # hooks may keep what would be overwritten
        else:
            inner = inner_dropout(inner, relu=True)
        output: Tensor = dropout(contract(inner))
        return output


class GatedFeedForward(nn.Module):
    """Position-wise (act(x W_gate) ⊙ x W_up) W_down without biases (Shazeer 2020): SwiGLU or GEGLU.

    Dropout is after the product and at the end, as in `FeedForward`.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.activation = F.silu if config.feed_forward == "swiglu" else F.gelu
        self.gate = nn.Linear(config.d_model, config.d_inner, bias=False)
        self.up = nn.Linear(config.d_model, config.d_inner, bias=False)
        self.down = nn.Linear(config.d_inner, config.d_model, bias=False)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Compute the output of every position from its input."""
        inner = self.dropout(self.activation(self.gate(hidden_BTD)) * self.up(hidden_BTD))
        return self.dropout(self.down(inner))


class TransformerXLLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a LayerNorm (LN) or RMSNorm after (or before) it.

    post-norm (the paper):  o = LN(h + Attn(h, m)),  h' = LN(o + FF(o))
    pre-norm:               o = h + Attn(LN h, LN m),  h' = o + FF(LN o)

    Args:
        config: sizes, dropout, the kinds of norm and feed-forward, and the place of the norms.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = Attention(config)
        self.attention_norm = make_norm(config)
        self.feed_forward = FeedForward(config) if config.feed_forward == "relu" else GatedFeedForward(config)
        self.feed_forward_norm = make_norm(config)
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

    def forward_at(
        self,
        places_Q: Int[Tensor, " Q"],
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "B Q D"]:
        """Compute the layer's output at some places only; arguments as in `forward`."""
        states = [self.attention_norm(x) if self.pre_norm else x for x in (hidden_BTD, memory_BMD)]
        attended_BQD = self.attention(*states, positions, visible)[:, places_Q]
        return self.forward_with(lambda _: attended_BQD, hidden_BTD[:, places_Q])

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
