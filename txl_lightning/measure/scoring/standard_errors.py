"""Standard error of a mean loss, over the sentences or blocks of a text."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.96  # standard errors on either side of a mean


def text_units(
    positions: NDArray[np.int64], sentences: NDArray[np.int64] | None, block_len: int
) -> tuple[NDArray[np.int64], str]:
    """Return the unit of each position, and the name of a unit in words: units are treated as independent.

    Units are the sentences of the corpus if it has any, otherwise blocks of neighbouring tokens. Losses of neighbouring
    tokens are correlated; per-token errors would be too small. Per-block errors are still too small where correlation
    reaches beyond a block. A `<S>` belongs to the sentence before it, whose end it marks.

    Args:
        positions: positions in the split.
        sentences: first position of every sentence, ascending from 0; None without sentences.
        block_len: tokens in a block.
    """
    if sentences is None:
        return positions // block_len, f"blocks of {block_len:,} tokens"
    return np.searchsorted(sentences, positions, side="left") - 1, "sentences"


def standard_error(values_P: NDArray[np.floating], units_P: NDArray[np.int64]) -> tuple[float | None, int]:
    """Return the standard error of the mean of P values, correlated within units, and the number of units, U.

        m = Σ_u s_u / Σ_u n_u        Var m = U / (U - 1) · Σ_u (s_u - m n_u)² / P²

    s_u is the sum and n_u the number of the values of unit u: the linearised ratio estimator, for units of any
    length. The error of a single unit is None.
    """
    n_U = np.bincount(units_P)
    s_U = np.bincount(units_P, weights=values_P)
    U, P = int((n_U > 0).sum()), len(values_P)
    if U < 2:
        return None, U
    deviations = s_U - s_U.sum() / P * n_U
    return math.sqrt(U / (U - 1) * float((deviations**2).sum())) / P, U
