"""How sure a mean loss is: its standard error over the parts of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txl_lightning.runs.metrics import loss_metrics


@dataclass(frozen=True)
class TextUnits:
    """The parts of a split that count as drawn independently: its sentences, or blocks of neighbouring tokens.

    Losses of neighbours are alike, so that single tokens would promise too small an error; so do blocks,
    as far as what makes losses alike reaches beyond them.

    Args:
        name: what a unit is, in words.
        starts: positions where units begin, ascending, the first one 0; None for blocks.
        block_len: tokens of a block.
    """

    name: str
    starts: NDArray[np.int64] | None = None
    block_len: int = 1

    def of_positions(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The unit of each position. A sentence's `<S>` is predicted as the end of the one before, and counts there."""
        if self.starts is None:
            return positions // self.block_len
        return np.searchsorted(self.starts, positions, side="left") - 1


def text_units(sentences: NDArray[np.int64] | None, block_len: int) -> TextUnits:
    """Sentences where the corpus has them, blocks otherwise."""
    if sentences is None:
        return TextUnits(f"blocks of {block_len:,} tokens", block_len=block_len)
    return TextUnits("sentences", np.asarray(sentences))


def standard_error(values_P: NDArray[np.floating], units_P: NDArray[np.int64]) -> tuple[float | None, int]:
    """Standard error of the mean of P values that depend on each other within units, and how many units there are.

        m = Σ_u s_u / Σ_u n_u        Var m = U / (U - 1) · Σ_u (s_u - m n_u)² / P²

    s_u and n_u are sum and number of the values of unit u: the ratio estimator, linearised, for units of any
    length. None for a single unit.
    """
    n_U = np.bincount(units_P)
    s_U = np.bincount(units_P, weights=values_P)
    U, P = int((n_U > 0).sum()), len(values_P)
    if U < 2:
        return None, U
    deviations = s_U - s_U.sum() / P * n_U
    return math.sqrt(U / (U - 1) * float((deviations**2).sum())) / P, U


def error_figures(error: float | None, nll: float, level: str) -> dict[str, float | None]:
    """A standard error in nats and in the unit of the level: d bpc = d nll / ln 2, d ppl = ppl · d nll."""
    values = loss_metrics(nll, level)
    unit = next(name for name in values if name != "nll")
    scale = values["ppl"] if unit == "ppl" else 1 / math.log(2)
    return {"nll": error, unit: None if error is None else scale * error}
