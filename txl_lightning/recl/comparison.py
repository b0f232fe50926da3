"""RECL in Python, without the command: models or plain functions on a token array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import Entries
from txl_lightning.recl.loss_by_context import group_results
from txl_lightning.recl.page import page
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.windows import window_losses, window_reader


class LossFunction:
    """Language model around a function from tokens to losses.

    Args:
        function: takes tokens, [B, T + 1], and returns every token's loss except the first's, in nats, [B, T], as a
            tensor or an array: -log P(x_t | x_0 … x_{t-1}).
    """

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function = function

    def score(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        state: None = None,
    ) -> tuple[Tensor, None]:
        """Return the targets' losses; with fewer targets than tokens, the first tokens are only context."""
        window_BT = torch.cat(
            [tokens_BT, targets_BT[:, -1:]],
            dim=1,
        )
        nll_BT = torch.as_tensor(self.function(window_BT))
        return nll_BT[:, -targets_BT.shape[1] :], state


def compare(
    models: Mapping[str, LanguageModel | Callable[[Tensor], Any]],
    tokens: np.ndarray,
    contexts: Sequence[int],
    n_positions: int = 1000,
    texts: Sequence[str] | None = None,
    **definition: Any,
) -> tuple[Entries, str]:
    """Return the curves, RECL and their intervals, as `recl.json` has them, and the page, one HTML file.

    Args:
        models: language models, or functions as `LossFunction` describes them, by name.
        tokens: the text, one-dimensional.
        contexts: the grid, ascending.
        n_positions: positions to score, as `position_blocks` chooses them.
        texts: each token's text; None to show numbers.
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    positions, blocks = position_blocks(len(tokens), n_positions, contexts)
    losses = {}
    for name, model in models.items():
        if not isinstance(model, LanguageModel):
            model = LossFunction(model)
        losses[name] = window_losses(
            window_reader(model),
            tokens,
            positions,
            contexts,
        )
    results = group_results(losses, contexts, positions, blocks, "token", **definition)
    results["split"] = f"{len(tokens):,} tokens"
    results["corpus"] = {"name": "text", "level": "token"}

    def spell(begin: int, stop: int) -> list[str]:
        if texts is not None:
            return list(texts[begin:stop])
        return [f" {token}" for token in tokens[begin:stop]]

    losses_ICP = np.stack([*losses.values()])
    return results, page(results, losses_ICP, positions, blocks, spell)
