"""Use of context by one model: losses by context, gains; differences of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from txl_lightning.evaluation.losses import NORMAL_95, standard_error, window_losses, window_reader
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import (
    Array,
    EffectiveContext,
    Integers,
    relative_effective_context_lengths,
)

NEAR = 0.01  # of the loss at the longest context


@dataclass(frozen=True)
class ContextCurve:
    """Loss of a model by context, and its RECL in a group of one.

    Args:
        nll: mean loss over the positions at each context, in nats.
        standard_error: standard error of `nll` over the blocks of positions, in nats.
        recl: RECL by fraction r of hardest positions.
        gains: how the loss falls with context, from `context_gains`.
    """

    nll: list[float]
    standard_error: list[float]
    recl: dict[float, EffectiveContext]
    gains: dict[str, Any]


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
    """Measure a model's loss at several contexts and its RECL on its own.

    The model keeps its training mode and its lengths. Under `torch.distributed` all ranks must call
    this function.

    Args:
        model: any language model.
        tokens: the split, one-dimensional.
        positions: positions t of the targets, from `position_blocks`.
        contexts: the grid c_0, c_0 + Δ, ….
        trained_len: see `window_reader`.
        clamp_len: see `window_reader`.
        blocks: block of each position, from `position_blocks`; None for a block per position.
        definition: fractions, threshold, bootstrap and seed of
            `relative_effective_context_lengths`.
    """
    reader = window_reader(model, trained_len, clamp_len)
    losses_CP = window_losses(reader, tokens, positions, contexts)
    nll_C, error_C = mean_and_error(losses_CP, blocks)
    lengths = relative_effective_context_lengths(
        {"model": losses_CP}, contexts, limits={"model": reader.limit}, blocks=blocks, **definition
    )
    return ContextCurve(
        nll=nll_C.tolist(),
        standard_error=error_C.tolist(),
        recl=lengths["model"],
        gains=context_gains(losses_CP, contexts, blocks),
    )


def mean_and_error(losses_CP: Array, blocks: Integers | None = None) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    if blocks is None:
        blocks = np.arange(losses_CP.shape[1])
    errors = [standard_error(losses_P, blocks)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array(errors, dtype=np.float64)  # None becomes nan


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[dict[str, Any]]:
    """Return the difference of mean losses of every two models at each context, paired by position, in nats.

    The standard error is over blocks of the differences, which fluctuate less than the losses of
    either model. `low` and `high` are the ends of the 95 % interval, 1.96 standard errors on either
    side.
    """
    differences = []
    for model, minus in combinations(losses, 2):
        mean_C, error_C = mean_and_error(losses[model] - losses[minus], blocks)
        difference = {
            "model": model,
            "minus": minus,
            "nll": mean_C.tolist(),
            "nll_standard_error": error_C.tolist(),
            "low": (mean_C - NORMAL_95 * error_C).tolist(),
            "high": (mean_C + NORMAL_95 * error_C).tolist(),
        }
        differences.append(difference)
    return differences


def context_gains(
    losses_CP: Array, contexts: Sequence[int], blocks: Integers | None = None
) -> dict[str, Any]:
    """Return how the mean loss f(c) of a model falls with context.

        gain of a doubling    (f(c) - f(2c)) / ln 2, in bits, for every c with c and 2c on the grid
        near the end          the first c with f(c) <= 1.01 · f(longest context)
        share of the gain     (f(c_0) - f(c)) / (f(c_0) - f(longest context)); None if nothing is gained

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        blocks: block of each position; None for a block per position.
    """
    mean_C = losses_CP.mean(axis=1)
    losses_of = dict(zip(contexts, losses_CP, strict=True))
    doublings = []
    for c in contexts:
        if 2 * c in losses_of:
            bits_P = (losses_of[c] - losses_of[2 * c]) / np.log(2)
            (gain,), (error,) = mean_and_error(bits_P[None], blocks)
            doublings.append(
                {"from": c, "to": 2 * c, "bits": float(gain), "standard_error": float(error)}
            )
    near_end = mean_C <= (1 + NEAR) * mean_C[-1]
    total = float(mean_C[0] - mean_C[-1])
    share = None
    if total > 0:
        share = ((mean_C[0] - mean_C) / total).tolist()
    return {
        "doublings": doublings,
        "within_1_percent": contexts[int(np.argmax(near_end))],
        "share_of_gain": share,
    }
