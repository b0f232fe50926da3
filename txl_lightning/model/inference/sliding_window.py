"""Evaluation of a vanilla model: a window that slides by one token, with a forward pass for every token."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from txl_lightning.errors import require
from txl_lightning.model.transformer_xl import TransformerXL


class SlidingWindow:
    """A model without recurrence that sees L tokens for every prediction (paper §1, Figure 1b, and Table 9).

        P(x_{t+1} | x_{t-L+1}, …, x_t), each from a separate forward pass over the L tokens up to x_t

    Every token is predicted with the whole attention length, at L times the work of a token. The interface is
    that of a language model: the state is the last L tokens. There are no gradients.

    Args:
        model: model whose weights are used, in evaluation mode; its memory and extended context are not used.
        attention_len: L, tokens of a window, the one before the prediction included.
        fused: use torch's scaled_dot_product_attention, which never holds all logits: the same function,
            faster. Only for encodings whose logits have term (a) alone, unrotated, such as `absolute` and `al_rfou`,
            without resets, of the core's model.

    Raises:
        OptionError: `attention_len` is below 1, or `fused` with another encoding.
    """

    def __init__(self, model: TransformerXL, attention_len: int, fused: bool = False) -> None:
        require(attention_len >= 1, "attention_len", attention_len, "must be an integer >= 1")
        config = model.config
        plain = config.active_terms == "a" and not config.kind.rotates and type(model) is TransformerXL
        others = "must be false but for a plain TransformerXL with term (a) alone, unrotated, and memory_reset=never"
        require(not fused or (plain and config.memory_reset == "never"), "fused", fused, others)
        self.model = model.with_lengths(mem_len=0, ext_len=0, same_length=False)
        self.attention_len, self.fused = attention_len, fused

    @torch.no_grad()
    def __call__(
        self, tokens_BT: Int[Tensor, "B T"], seen_BL: Int[Tensor, "B seen"] | None = None
    ) -> tuple[Float[Tensor, "B 1 D"], Int[Tensor, "B L"]]:
        """Return the hidden state of the last token, from the window that ends with it, and the window's tokens."""
        text = tokens_BT if seen_BL is None else torch.cat([seen_BL, tokens_BT], dim=1)
        window_BL = text[:, -self.attention_len :]
        hidden_BLD = self._fused(window_BL) if self.fused else self.model(window_BL)[0]
        return hidden_BLD[:, -1:], window_BL

    @torch.no_grad()
    def score(
        self,
        tokens_BT: Int[Tensor, "B T"],
        targets_BT: Int[Tensor, "B T_targets"],
        seen_BL: Int[Tensor, "B seen"] | None = None,
    ) -> tuple[Float[Tensor, "B T_targets"], Int[Tensor, "B L"]]:
        """Return nll_t = -log P(target_t | its window) in nats, by a forward pass for each target.

        `tokens_BT` may be longer than `targets_BT`; the first tokens are then context without a loss.

        Raises:
            ValueError: there are fewer tokens than targets, or no target.
        """
        T, T_targets = tokens_BT.shape[1], targets_BT.shape[1]
        if not 1 <= T_targets <= T:
            raise ValueError(f"{T} tokens cannot predict {T_targets} targets")
        first, *others = tokens_BT.split([T - T_targets + 1, *[1] * (T_targets - 1)], dim=1)
        nll = []
        for token_BT, target_B1 in zip((first, *others), targets_BT.split(1, dim=1), strict=True):
            hidden_B1D, seen_BL = self(token_BT, seen_BL)
            nll.append(self.model.losses(hidden_B1D, target_B1))
        assert seen_BL is not None
        return torch.cat(nll, dim=1), seen_BL

    def log_probabilities(self, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Return log P(token | h) of every token of the vocabulary, from the hidden states of a call."""
        return self.model.log_probabilities(hidden_BTD)

    def _fused(self, window_BL: Tensor) -> Float[Tensor, "B L D"]:
        """Compute causal attention with term (a) alone over a segment without memory.

        It does not go through `Attention.attend`: what is added there must be added here.
        """
        model, layers = self.model, list[Any](self.model.layers)
        hidden_BLD = model.encoding.embed(model.embedding(window_BL), model.config.clamp_len)
        for n, layer in enumerate(layers):
            input_BLD = model.encoding.layer_input(n, hidden_BLD)
            window_BLD = layer.attention_input(input_BLD)
            q_HBLE, (k_HBLE, v_HBLE) = layer.attention.project(window_BLD)
            heads_HBLE = F.scaled_dot_product_attention(q_HBLE, k_HBLE, v_HBLE, is_causal=True)
            hidden_BLD = layer.after_attention(input_BLD, layer.attention.combine_heads(heads_HBLE))
        return hidden_BLD
