"""Use of context by models: losses by context and RECL, as entries of `recl.json`; differences of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np

from txl_lightning.evaluation.losses import standard_error
from txl_lightning.evaluation.units import errors_by_unit, loss_metrics, loss_unit
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import (
    Array,
    Entries,
    Integers,
    relative_effective_context_lengths,
)
from txl_lightning.recl.windows import window_losses, window_reader

NEAR = 0.01  # relative to the loss at the longest context
DEFINITION = {"fractions": [0.1, 0.5, 1.0], "threshold": 0.01, "bootstrap": 1000, "seed": 1}


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    blocks: Integers | None = None,
    level: str = "token",
    **definition: Any,
) -> Entries:
    """Measure a model's loss at several contexts and its RECL without other models: its entries in `recl.json`.

    The model keeps its training mode and its lengths. Under `torch.distributed` all ranks must call
    this function.

    Args:
        model: any language model.
        tokens: the split, one-dimensional.
        positions: target positions t, from `position_blocks`.
        contexts: the grid c_0, c_0 + Δ, ….
        trained_len: see `window_reader`.
        clamp_len: see `window_reader`.
        blocks: block index per position, from `position_blocks`; None: every position is a block.
        level: level of the tokens, which decides the unit: see `loss_unit`.
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    if blocks is None:
        blocks = np.arange(len(positions))
    reader = window_reader(model, trained_len, clamp_len)
    losses = {"model": window_losses(reader, tokens, positions, contexts)}
    limits = {"model": reader.limit}
    results = group_results(
        losses,
        contexts,
        positions,
        blocks,
        level,
        limits,
        **definition,
    )
    entries: Entries = results["models"][0]
    return entries


def group_results(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: Integers,
    blocks: Integers,
    level: str,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> Entries:
    """Return the `recl.json` entries that follow from losses.

    Args:
        losses: l(c, t) for every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block of each position, [P].
        level: level of the tokens, which decides the unit: see `loss_unit`.
        limits: tokens that each model can see.
        begins: first token that each position's context may have, [P].
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    definition = {**DEFINITION, **definition}
    lengths = relative_effective_context_lengths(
        losses, contexts, limits=limits, blocks=blocks, **definition
    )
    models = []
    for name, losses_CP in losses.items():
        of_fractions = {}
        for r, length in lengths[name].items():
            of_fractions[str(float(r))] = asdict(length)
        entries = _loss_entries(losses_CP, contexts, blocks, level)
        models.append({"name": name, **entries, "recl": of_fractions})
    is_cut_P = positions - contexts[-1] < begins
    return {
        "unit": loss_unit(level),
        "contexts": list(contexts),
        **definition,
        "models": models,
        "differences": loss_differences(losses, blocks),
        "positions": {
            "number": len(positions),
            "blocks": len(np.unique(blocks)),
            "cut": int(is_cut_P.sum()),
        },
    }


def _loss_entries(
    losses_CP: Array, contexts: Sequence[int], blocks: Integers, level: str
) -> Entries:
    """Return a model's mean losses, in nats and in the level's unit, and the first context within 1 % of the last."""
    nll_C, error_C = _mean_and_error(losses_CP, blocks)
    unit = loss_unit(level)
    values = []
    errors = []
    for nll, error in zip(
        nll_C.tolist(),
        error_C.tolist(),
        strict=True,
    ):
        values.append(loss_metrics(nll, level)[unit])
        errors.append(errors_by_unit(error, nll, level)[unit])
    is_near_C = nll_C <= (1 + NEAR) * nll_C[-1]
    return {
        "nll": nll_C.tolist(),
        "nll_standard_error": error_C.tolist(),
        unit: values,
        f"{unit}_standard_error": errors,
        "within_1_percent": contexts[int(np.argmax(is_near_C))],
    }


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[Entries]:
    """Return the difference in mean loss between every two models at each context, paired by position, in nats.

    The standard error is taken over blocks of differences: these fluctuate less than either model's losses.
    """
    differences = []
    for model, minus in combinations(losses, 2):
        mean_C, error_C = _mean_and_error(losses[model] - losses[minus], blocks)
        difference = {
            "model": model,
            "minus": minus,
            "nll": mean_C.tolist(),
            "nll_standard_error": error_C.tolist(),
        }
        differences.append(difference)
    return differences


def _mean_and_error(losses_CP: Array, blocks: Integers) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    errors = [standard_error(losses_P, blocks)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array(errors, dtype=np.float64)  # None becomes nan
