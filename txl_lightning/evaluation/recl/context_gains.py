"""Numbers beside RECL: gains of the mean loss by context, and the loss of classes of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.evaluation.recl.loss_by_context import mean_and_error

NEAR = 0.01  # of the loss at the longest context

Integers = NDArray[np.int64]


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
        tokens: the text.
        positions: t.
        further: members of other classes, [P], by name.
    """
    distance_P = _distances(np.asarray(tokens), positions)
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
