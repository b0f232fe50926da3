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
from txl_lightning.evaluation.scoring.loss_grid import loss_grid
from txl_lightning.evaluation.scoring.standard_errors import standard_error
from txl_lightning.evaluation.scoring.windows import window_reader
from txl_lightning.model.language_model import LanguageModel

NORMAL_95 = 1.96  # standard errors on either side of a mean


@dataclass(frozen=True)
class ContextCurve:
    """Loss of a model by context, and its RECL in a group of one.

    Args:
        contexts: c, in tokens.
        nll: mean loss over the positions at each c, in nats.
        standard_error: standard error of `nll` over the blocks of positions, in nats.
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


def mean_and_error(losses_CP: Array, blocks: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    units_P = np.arange(losses_CP.shape[1]) if blocks is None else blocks
    errors = [standard_error(losses_P, units_P)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array([math.nan if error is None else error for error in errors])


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: NDArray[np.int64],
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    batch_tokens: int | None = None,
    blocks: NDArray[np.int64] | None = None,
    **recl_options: Any,
) -> ContextCurve:
    """Measure a model's loss at several contexts and its RECL on its own.

    The model keeps its training mode and its lengths. Under `torch.distributed` all ranks must call this function.

    Args:
        model: any language model.
        tokens: the split, one-dimensional.
        positions: positions t of the targets, from `position_blocks`.
        contexts: c, ascending; RECL needs equal steps.
        trained_len: see `window_reader`.
        clamp_len: see `window_reader`.
        batch_tokens: see `loss_grid`.
        blocks: block of each position, from `position_blocks`; None for a block per position.
        recl_options: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    reader = window_reader(model, trained_len, clamp_len)
    losses_CP = loss_grid(reader, tokens, positions, contexts, batch_tokens)
    nll, error = mean_and_error(losses_CP, blocks)
    recl: dict[float, EffectiveContext] = {}
    if len({later - earlier for earlier, later in pairwise(contexts)}) == 1:
        options = {"limits": {"model": reader.limit}, "blocks": blocks, **recl_options}
        recl = relative_effective_context_lengths({"model": losses_CP}, contexts, **options)["model"]
    return ContextCurve(list(contexts), nll.tolist(), error.tolist(), recl)
