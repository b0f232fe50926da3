"""RECL of the exact model of `data=recall`, measured and derived."""

from collections.abc import Sequence
from itertools import pairwise
from math import expm1, log

import numpy as np

from examples.recall_oracle import RecallOracle
from txl_lightning.data.recall import Recall
from txl_lightning.measure.effective_context import (
    EffectiveContext,
    relative_effective_context_lengths,
)
from txl_lightning.measure.loss_by_context import position_blocks
from txl_lightning.measure.losses import WindowReader, window_losses

FRACTIONS = (0.1, 0.5, 1.0)
THRESHOLD = 0.01


def measured(recall: Recall, contexts: Sequence[int], n_tokens: int = 100_000) -> dict[float, EffectiveContext]:
    """RECL of the exact model on a draw of the text, at positions as in `txl recl`."""
    tokens = np.frombuffer(recall.text(n_tokens, seed=2).encode(), np.uint8)
    positions, _ = position_blocks(n_tokens, 2_000, contexts, seed=2)
    losses = window_losses(WindowReader(RecallOracle(recall), one_pass=True), tokens, positions, contexts)
    return relative_effective_context_lengths({"oracle": losses}, contexts, FRACTIONS, bootstrap=0)["oracle"]


def expected_gains(recall: Recall, contexts: Sequence[int], r: float) -> list[float]:
    """Relative gain g(c, c') of every step, of infinitely many positions; without blocks of text.

    S is the share of tokens with d <= c, s of those with c < d <= c'. By b(c, t) there are, from hardest to easiest,

        (1 - q) S    tokens that do not repeat, although their source is seen:  b = ln V - ln(1 - p)
        1 - S        tokens whose source is not seen:                          b = ln V
        q S          tokens that repeat:                                       b = -ln q

    A step gains ln(qV) at a share q of the s, which is in the second class. Where it makes a loss higher, b counts. T
    has n places in that class, shared equally, so f falls by n / (1 - S) · s q ln(qV) / r.
    """
    p, q, V = recall.repeats, recall.match, recall.symbols
    assert log(V) < log(V) - log(1 - p)
    gains = []
    for c, longer in pairwise(contexts):
        seen, new = (np.mean([low < d <= high for d in recall.distances]) for low, high in ((0, c), (c, longer)))
        places = min(max(r - (1 - q) * seen, 0), 1 - seen)
        gains.append(-expm1(-places / (1 - seen) * new * q * log(q * V) / r) if new else 0.0)
    return gains


def expected_length(recall: Recall, contexts: Sequence[int], r: float) -> int:
    """First context of the grid whose step gains less than the threshold."""
    gains = expected_gains(recall, contexts, r)
    return next(c for c, gain in zip(contexts, gains, strict=False) if gain < THRESHOLD)


GRID = range(8, 144, 15)  # a step of 15: the positions of a block are 15 apart, so they are of all eight chains
DISTANCES = tuple(range(16, 129, 16))  # one in every step


def up_to(distance: int, repeats: float) -> Recall:
    """Eight chains: one of every distance up to the longest, the others of 16 tokens."""
    return Recall(tuple(d if d <= distance else 16 for d in DISTANCES), repeats, 8)
