"""Use of context by models: losses by context, and RECL; differences of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from txl_lightning.evaluation.losses import NORMAL_95, standard_error
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import (
    Array,
    EffectiveContext,
    Entries,
    Integers,
    relative_effective_context_lengths,
)
from txl_lightning.recl.windows import window_losses, window_reader

NEAR = 0.01  # relative to the loss at the longest context


@dataclass(frozen=True)
class ContextCurve:
    """Loss of a model by context, and its RECL in a group.

    Args:
        nll: mean loss over the positions at each context, in nats.
        standard_error: standard error of `nll` over position blocks, in nats.
        within_1_percent: first context whose mean loss is at most 1 % above that at the longest.
        recl: RECL by fraction r of hardest positions.
    """

    nll: list[float]
    standard_error: list[float]
    within_1_percent: int
    recl: dict[float, EffectiveContext]


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    blocks: Integers | None = None,
    **definition: Any,
) -> ContextCurve:
    """Measure a model's loss at several contexts and its RECL without other models.

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
        definition: fractions, threshold, bootstrap and seed for `relative_effective_context_lengths`.
    """
    if blocks is None:
        blocks = np.arange(len(positions))
    reader = window_reader(model, trained_len, clamp_len)
    losses = {"model": window_losses(reader, tokens, positions, contexts)}
    limits = {"model": reader.limit}
    return context_curves(losses, contexts, blocks, limits=limits, **definition)["model"]


def context_curves(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    blocks: Integers,
    **definition: Any,
) -> dict[str, ContextCurve]:
    """Return the curve of every model of a group from l(c, t), [C, P], in nats."""
    lengths = relative_effective_context_lengths(losses, contexts, blocks=blocks, **definition)
    curves = {}
    for name, losses_CP in losses.items():
        nll_C, error_C = _mean_and_error(losses_CP, blocks)
        is_near_C = nll_C <= (1 + NEAR) * nll_C[-1]
        curves[name] = ContextCurve(
            nll_C.tolist(),
            error_C.tolist(),
            contexts[int(np.argmax(is_near_C))],
            lengths[name],
        )
    return curves


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[Entries]:
    """Return the difference in mean loss between every two models at each context, paired by position, in nats.

    The standard error is taken over blocks of differences: these fluctuate less than either model's losses. `low` and
    `high` are the 95 % interval, 1.96 standard errors on either side.
    """
    differences = []
    for model, minus in combinations(losses, 2):
        mean_C, error_C = _mean_and_error(losses[model] - losses[minus], blocks)
        half_C = NORMAL_95 * error_C
        difference = {
            "model": model,
            "minus": minus,
            "nll": mean_C.tolist(),
            "nll_standard_error": error_C.tolist(),
            "low": (mean_C - half_C).tolist(),
            "high": (mean_C + half_C).tolist(),
        }
        differences.append(difference)
    return differences


def _mean_and_error(losses_CP: Array, blocks: Integers) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    errors = [standard_error(losses_P, blocks)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array(errors, dtype=np.float64)  # None becomes nan
