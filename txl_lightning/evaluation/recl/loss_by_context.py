"""Loss of one model by context, and its RECL on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, relative_effective_context_lengths
from txl_lightning.evaluation.scoring.windows import context_losses, window_reader
from txl_lightning.model.language_model import LanguageModel


@dataclass(frozen=True)
class ContextCurve:
    """Loss of a model by context, and its RECL in a group of one.

    Args:
        contexts: c, in tokens.
        nll: mean loss over the positions at each c, in nats.
        standard_error: standard error of `nll` over the positions, in nats.
        recl: RECL by fraction r of hardest positions; empty if the contexts are not evenly spaced.
    """

    contexts: list[int]
    nll: list[float]
    standard_error: list[float]
    recl: dict[float, EffectiveContext]

    @property
    def ppl(self) -> list[float]:
        """Perplexity at each c."""
        return [math.exp(nll) for nll in self.nll]

    @property
    def bpc(self) -> list[float]:
        """Bits per token (character or byte) at each c."""
        return [nll / math.log(2) for nll in self.nll]


def mean_and_error(losses_CP: Array) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error (nan for a single position), both [C]."""
    n = losses_CP.shape[1]
    deviations = losses_CP.std(axis=1, ddof=1) if n > 1 else np.full(len(losses_CP), np.nan)
    return losses_CP.mean(axis=1), deviations / math.sqrt(n)


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: NDArray[np.int64],
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    batch_tokens: int | None = None,
    **recl_options: Any,
) -> ContextCurve:
    """Measure a model's loss at several contexts and its RECL on its own.

    The model keeps its training mode and its lengths. Under `torch.distributed` all ranks must call this function.

    Args:
        model: any language model.
        tokens: the split, one-dimensional.
        positions: positions t of the targets, from `evenly_spaced`.
        contexts: c, ascending; RECL needs equal steps.
        trained_len: see `window_reader`.
        clamp_len: see `window_reader`.
        batch_tokens: see `context_losses`.
        recl_options: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    reader = window_reader(model, trained_len, clamp_len)
    by_length = {c: context_losses(reader, tokens, positions, c, batch_tokens) for c in sorted(set(contexts))}
    losses_CP = np.stack([by_length[c] for c in contexts])
    nll, error = mean_and_error(losses_CP)
    recl: dict[float, EffectiveContext] = {}
    if len({later - earlier for earlier, later in pairwise(contexts)}) == 1:
        group, limits = {"model": losses_CP}, {"model": reader.limit}
        recl = relative_effective_context_lengths(group, contexts, limits=limits, **recl_options)["model"]
    return ContextCurve(list(contexts), nll.tolist(), error.tolist(), recl)
