"""Losses of one model by context and by position: means with errors, gains, classes of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.documents import without_marks
from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, relative_effective_context_lengths
from txl_lightning.evaluation.scoring.standard_errors import standard_error
from txl_lightning.evaluation.scoring.windows import Integers, WindowReader, loss_grid, window_losses, window_reader
from txl_lightning.model.language_model import LanguageModel

NORMAL_95 = 1.96  # standard errors on either side of a mean
NEAR = 0.01  # of the loss at the longest context
SINGLE = 16  # first positions, each in a bin of its own


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


def mean_and_error(losses_CP: Array, blocks: Integers | None = None) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    units_P = np.arange(losses_CP.shape[1]) if blocks is None else blocks
    errors = [standard_error(losses_P, units_P)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array([math.nan if error is None else error for error in errors])


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    batch_tokens: int | None = None,
    blocks: Integers | None = None,
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


def context_gains(losses_CP: Array, contexts: Sequence[int], blocks: Integers) -> dict[str, Any]:
    """Return how the mean loss f(c) of a model falls with context.

        gain of a doubling    (f(c) - f(2c)) / ln 2, in bits, for every c with c and 2c on the grid
        near the end          the first c with f(c) <= 1.01 · f(longest context)
        share of the gain     (f(c_0) - f(c)) / (f(c_0) - f(longest context)); None if nothing is gained

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        blocks: block of each position.
    """
    mean_C = losses_CP.mean(axis=1)
    place = {c: i for i, c in enumerate(contexts)}
    doublings = []
    for c in contexts:
        if 2 * c in place:
            gain, error = mean_and_error((losses_CP[place[c]] - losses_CP[place[2 * c]])[None] / np.log(2), blocks)
            doublings.append({"from": c, "to": 2 * c, "bits": float(gain[0]), "standard_error": float(error[0])})
    total = float(mean_C[0] - mean_C[-1])
    return {
        "doublings": doublings,
        "within_1_percent": contexts[int(np.argmax(mean_C <= (1 + NEAR) * mean_C[-1]))],
        "share_of_gain": ((mean_C[0] - mean_C) / total).tolist() if total > 0 else None,
    }


def block_gains(losses: Mapping[str, Array], blocks: Integers) -> dict[str, Array]:
    """Return the mean of l(c_0, t) - l(c, t) over the positions of each block, [C, blocks], in nats, by model."""
    names, block_P = np.unique(blocks, return_inverse=True)
    share_PB = np.zeros((len(blocks), len(names)))
    share_PB[np.arange(len(blocks)), block_P] = 1 / np.bincount(block_P)[block_P]
    return {name: (losses_CP[:1] - losses_CP) @ share_PB for name, losses_CP in losses.items()}


def token_classes(
    losses_CP: Array,
    contexts: Sequence[int],
    tokens: np.ndarray,
    positions: Integers,
    further: Mapping[str, NDArray[np.bool_]] | None = None,
) -> dict[str, dict[str, list[Any]]]:
    """Return the mean loss of classes of target tokens at each context, and how many positions are in each class.

        within     the target occurs among the c tokens before it
        farther    it occurs only farther back in the text
        new        it does not occur earlier in the text
        frequent   it is one of the most frequent tokens, which together are half of the text
        rare       it is none of them

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        tokens: the text, its documents marked or not.
        positions: t.
        further: members of other classes, [P], by name.
    """
    tokens = without_marks(tokens)
    distance_P = _distances(tokens, positions)
    counts = np.bincount(tokens)
    by_count = np.argsort(-counts, kind="stable")
    enough = int(np.searchsorted(counts[by_count].cumsum(), len(tokens) / 2)) + 1
    frequent_P = np.isin(tokens[positions], by_count[:enough])
    members = {
        "within": [(distance_P > 0) & (distance_P <= c) for c in contexts],
        "farther": [distance_P > c for c in contexts],
        "new": [distance_P == 0] * len(contexts),
        "frequent": [frequent_P] * len(contexts),
        "rare": [~frequent_P] * len(contexts),
        **{name: [member_P] * len(contexts) for name, member_P in (further or {}).items()},
    }
    return {
        name: {
            "nll": [float(l_P[m_P].mean()) if m_P.any() else None for l_P, m_P in zip(losses_CP, of_C, strict=True)],
            "positions": [int(m_P.sum()) for m_P in of_C],
        }
        for name, of_C in members.items()
    }


def _distances(tokens: np.ndarray, positions: Integers) -> Integers:
    """Return how far back the target of each position last occurred, [P]; 0 if it did not."""
    order = np.argsort(tokens, kind="stable")  # by token, then by place
    before = np.full(len(tokens), -1, dtype=np.int64)
    repeated = tokens[order[1:]] == tokens[order[:-1]]
    before[order[1:][repeated]] = order[:-1][repeated]
    return np.where(before[positions] >= 0, positions - before[positions], 0)


def position_losses(
    reader: WindowReader, tokens: np.ndarray, ends: Integers, length: int, batch_tokens: int | None = None
) -> Array:
    """Return the loss, [T, W], in nats, of the p-th target, p = 1 … T, of each of W windows read from a fresh state.

    Window w reads x_{t-T} … x_{t-1}; its p-th target has the p tokens of the window before it. T is `length`, or the
    tokens that the model sees. Under `torch.distributed` the windows are divided over the ranks: all ranks must call
    this function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        ends: t, the last target of each window.
        length: tokens of a window.
        batch_tokens: context tokens in a batch; None for the default of the model's device.
    """
    length = reader.visible(length)
    lengths = np.full(len(ends), length)
    return window_losses(reader, tokens, ends - length, lengths, reader.all_losses, length, batch_tokens).T


def binned_by_position(losses_TW: Array, blocks_W: Integers) -> dict[str, Any]:
    """Return the mean loss of bins of positions, in nats, with its standard error over the blocks of the windows.

    The first 16 positions have a bin each; a later bin is an eighth as long as the positions before it.
    """
    T = len(losses_TW)
    edges = [1]
    while edges[-1] <= T:
        edges.append(edges[-1] + (1 if edges[-1] <= SINGLE else edges[-1] // 8))
    firsts, lasts = edges[:-1], [min(edge - 1, T) for edge in edges[1:]]
    binned = np.stack([losses_TW[a - 1 : b].mean(axis=0) for a, b in zip(firsts, lasts, strict=True)])
    nll, error = mean_and_error(binned, blocks_W)
    return {
        "first": firsts,
        "last": lasts,
        "nll": nll.tolist(),
        "nll_standard_error": error.tolist(),
        "windows": losses_TW.shape[1],
    }
