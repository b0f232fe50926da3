"""Evaluation of a vanilla model: a window that slides by one token, with a forward pass for every token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.model.shapes import Hidden, LogProbabilities, TargetLosses, Targets, Tokens
from txl_lightning.model.transformer_xl import TransformerXL


class SlidingWindow:
    """A model without recurrence that sees L tokens for every prediction (paper §1, Figure 1b, and Table 9).

        P(x_{t+1} | x_{t-L+1}, …, x_t)

    Every prediction reads the last L tokens in a separate forward pass, at L times one token's work. The class has a
    language model's interface; its state is the last L tokens. It gives no gradients.

    Args:
        model: model whose weights are used, in evaluation mode; its memory and extended context are
            not used.
        attention_len: L, tokens in a window, including the one before the prediction.

    Raises:
        OptionError: `attention_len` is below 1.
    """

    def __init__(self, model: TransformerXL, attention_len: int) -> None:
        require(attention_len >= 1, "attention_len", attention_len, "must be an integer >= 1")
        self.model = model.with_lengths(mem_len=0, ext_len=0, same_length=False)
        self.attention_len = attention_len

    @torch.no_grad()
    def __call__(
        self, tokens_BT: Tokens, seen_BL: Int[Tensor, "B seen"] | None = None
    ) -> tuple[Float[Tensor, "B 1 D"], Int[Tensor, "B L"]]:
        """Return the last token's hidden state, from the window that ends with it, and the window's tokens."""
        text = tokens_BT
        if seen_BL is not None:
            text = torch.cat([seen_BL, tokens_BT], dim=1)
        window_BL = text[:, -self.attention_len :]
        hidden_BTD, _ = self.model(window_BL)
        return hidden_BTD[:, -1:], window_BL

    @torch.no_grad()
    def score(
        self,
        tokens_BT: Tokens,
        targets_BT: Targets,
        seen_BL: Int[Tensor, "B seen"] | None = None,
    ) -> tuple[TargetLosses, Int[Tensor, "B L"]]:
        """Return nll_t = -log P(target_t | its window) in nats, by a forward pass for each target.

        `tokens_BT` may be longer than `targets_BT`; the first tokens are then context without a
        loss.

        Raises:
            ValueError: there are fewer tokens than targets, or no target.
        """
        T = tokens_BT.shape[1]
        T_targets = targets_BT.shape[1]
        if not 1 <= T_targets <= T:
            raise ValueError(f"{T} tokens cannot predict {T_targets} targets")
        nll = []
        begin = 0
        for target in range(T_targets):
            end = T - T_targets + target + 1
            hidden_B1D, seen_BL = self(tokens_BT[:, begin:end], seen_BL)
            nll.append(self.model.losses(hidden_B1D, targets_BT[:, target : target + 1]))
            begin = end
        assert seen_BL is not None
        return torch.cat(nll, dim=1), seen_BL

    def log_probabilities(self, hidden_BTD: Hidden) -> LogProbabilities:
        """Return log P(token | h) for every token in the vocabulary, from a call's hidden states."""
        return self.model.log_probabilities(hidden_BTD)
