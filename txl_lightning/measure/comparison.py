"""Results of a group of models, `recl.json`, from their losses; and the whole measurement of plain functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.measure.effective_context import Array, relative_effective_context_lengths
from txl_lightning.measure.loss_by_context import (
    KEY_GAIN,
    context_gains,
    key_tokens,
    loss_differences,
    mean_and_error,
    position_blocks,
)
from txl_lightning.measure.losses import Integers, window_losses, window_reader
from txl_lightning.measure.recl_page import page
from txl_lightning.model.language_model import LanguageModel


class LossFunction:
    """Language model of a function from tokens to losses.

    Args:
        function: takes tokens, [B, T + 1], and returns the loss in nats of each but the first, [B, T], as a tensor or
            an array: -log P(x_t | x_0 … x_{t-1}).
    """

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function = function

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the losses of the targets; the first tokens are context if targets are fewer."""
        nll_BT = torch.as_tensor(self.function(torch.cat([tokens_BT, targets_BT[:, -1:]], dim=1)))
        return nll_BT[:, -targets_BT.shape[1] :], state


def compare(
    models: Mapping[str, LanguageModel | Callable[[Tensor], Any]],
    tokens: np.ndarray,
    contexts: Sequence[int],
    n_positions: int = 1000,
    texts: Sequence[str] | None = None,
    **definition: Any,
) -> tuple[dict[str, Any], str]:
    """Return the curves, RECL and their intervals, as `recl.json` has them, and the page, one HTML file.

    Args:
        models: language models, or functions as `LossFunction` describes them, by name.
        tokens: the text, one-dimensional.
        contexts: the grid, ascending.
        n_positions: positions to score, as `position_blocks` chooses them.
        texts: text of each token; None to show numbers.
        definition: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    t_P, block_P = position_blocks(len(tokens), n_positions, contexts)
    losses = {}
    for name, model in models.items():
        reader = window_reader(model if isinstance(model, LanguageModel) else LossFunction(model))
        losses[name] = window_losses(reader, tokens, t_P, contexts)
    shown = [f" {token}" for token in tokens.tolist()] if texts is None else list(texts)
    about: dict[str, Any] = {"split": f"{len(tokens):,} tokens", "corpus": {"name": "text", "level": "token"}}
    results = about | group_results(losses, contexts, t_P, block_P, "ppl", **definition)
    for model in results["models"]:
        model |= {"kind": type(models[model["name"]]).__name__, "limit": None, "scoring": "one pass"}
    return results, page(results, losses, t_P, block_P, lambda begin, stop: shown[begin:stop])


def group_results(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: Integers,
    blocks: Integers,
    unit: str,
    context_unit: str = "token",
    labels: Sequence[str] | None = None,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> dict[str, Any]:
    """Return the entries of `recl.json` that follow from losses.

    Args:
        losses: l(c, t) of every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block of each position, [P].
        unit: ppl, exp of a loss, or bpc, a loss in bits.
        context_unit: token or byte.
        labels: group of each model; None for one group of all.
        limits: tokens that each model can see.
        begins: first token that the context of each position may have, [P].
        definition: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    label_of = dict(zip(losses, labels or ["all"] * len(losses), strict=True))
    groups = {label: [name for name in losses if label_of[name] == label] for label in dict.fromkeys(label_of.values())}
    definition = dict[str, Any](fractions=[0.1, 0.5, 1.0], threshold=0.01, bootstrap=1000, seed=1) | definition
    lengths: dict[str, Any] = {}
    for names in groups.values():
        own = {name: losses[name] for name in names}
        found = relative_effective_context_lengths(own, contexts, limits=limits, blocks=blocks, **definition)
        lengths |= {name: {str(float(r)): vars(length) for r, length in of.items()} for name, of in found.items()}
    models = []
    for name, losses_CP in losses.items():
        nll_C, error_C = mean_and_error(losses_CP, blocks)
        value_C, slope_C = (np.exp(nll_C),) * 2 if unit == "ppl" else (nll_C / np.log(2), 1 / np.log(2))
        models.append(
            {
                "name": name,
                "nll": nll_C.tolist(),
                "nll_standard_error": error_C.tolist(),
                unit: value_C.tolist(),
                f"{unit}_standard_error": (slope_C * error_C).tolist(),
                **context_gains(losses_CP, contexts, blocks),
                "key_tokens": key_tokens(losses_CP, positions) if context_unit == "token" else None,
                "group": label_of[name],
                "recl": lengths[name],
            }
        )
    steps = set(np.diff(contexts).tolist())
    return {
        "unit": unit,
        "context_unit": context_unit,
        "contexts": list(contexts),
        "first_context": contexts[0],
        "step": steps.pop() if len(steps) == 1 else None,
        **definition,
        "key_contexts": [contexts[0], contexts[-1]],
        "key_gain": KEY_GAIN,
        "models": models,
        "differences": loss_differences(losses, blocks),
        "groups": [{"name": label, "models": names} for label, names in groups.items()],
        "positions": {
            "number": len(positions),
            "blocks": len(np.unique(blocks)),
            "cut": int((positions - contexts[-1] < begins).sum()),
        },
    }
