"""95 % intervals of differences: seeds and blocks of text vary together.

The loss of seed s of an arm on block b of the test split is L[s, b]. Two sources of chance move a mean loss: which
seeds were run, and which text was scored. Both are common to the two sides of a difference: arms are compared over the
seeds that both have, which read the same text in training, on the blocks that both scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Variance of a mean, with its degrees of freedom; 0 degrees where nothing was repeated."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Interval:
    """Effect with its 95 % interval; an end is None where it is open, both are where chance cannot be told."""

    effect: float
    low: float | None = None
    high: float | None = None

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return effect and ends after a change of unit that keeps their order."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return Interval(change(self.effect), low, high)

    def times(self, factor: float) -> Interval:
        """Return effect and ends times a positive factor."""
        return self.mapped(lambda value: value * factor)


def seed_spread(texts: Sequence[Sequence[Mapping[int, float]]]) -> Spread:
    """Pool the variance between runs that differ in nothing but the seed, over all arms of each text.

        variance = Σ (L_as - α_a - β_s)² / freedom,     freedom = Σ_text (runs - rank of the arms and seeds)

    Arms α and seeds β are fitted by least squares in each text. Runs of one seed read the same part of the text, which
    moves them alike, and cancels in a difference of arms over the seeds that both have. Two or three seeds of one arm
    say little of their own variance; all arms together say enough if the seed moves them alike.

    Args:
        texts: for each text its arms, each a loss by seed.
    """
    total, freedom = 0.0, 0
    for arms in texts:
        seeds = sorted({seed for by_seed in arms for seed in by_seed}) if len(arms) > 1 else []
        runs = [(i, seed, loss) for i, by_seed in enumerate(arms) for seed, loss in by_seed.items()]
        design = np.array(
            [[*(a == i for a in range(len(arms))), *(one == s for one in seeds)] for i, s, _ in runs], float
        )
        losses = np.array([loss for *_, loss in runs]) - np.mean([loss for *_, loss in runs])
        effects, _, rank, _ = np.linalg.lstsq(design, losses)
        total += float(((losses - design @ effects) ** 2).sum())
        freedom += len(runs) - int(rank)
    return Spread(total / freedom, freedom) if freedom else Spread(0.0, 0)


def over_blocks(values_SB: Array, weights_B: Array, seeds: Spread) -> Interval:
    """Return the mean of a value over seeds and blocks of text with its interval.

        effect ± t · √(V_seeds / S + V_blocks)
        V_blocks = Σ_b w_b² (value_b - effect)² / (Σ_b w_b)² · B / (B - 1)

    t is Student's quantile for the degrees of freedom of the sum (Satterthwaite): those of the seeds' variance, and
    B - 1. Without a repeated seed or a second block chance cannot be told.

    Args:
        values_SB: value of each block, a row for each of S seeds.
        weights_B: tokens of each block.
        seeds: variance of the value of one run, over seeds.
    """
    values_B, (S, B) = values_SB.mean(axis=0), values_SB.shape
    effect = float(values_B @ weights_B / weights_B.sum())
    if not seeds.freedom or B < 2:
        return Interval(effect)
    rest = weights_B * (values_B - effect) / weights_B.sum()
    parts = (Spread(seeds.variance / S, seeds.freedom), Spread(float(rest @ rest) * B / (B - 1), B - 1))
    variance = sum(part.variance for part in parts)
    freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts) if variance else 1.0
    return _around(effect, math.sqrt(variance), freedom)


def of_repeats(values: Sequence[float] | Array) -> Interval:
    """Return the mean of repeated measurements with its 95 % interval by Student's t."""
    found = np.asarray(values, dtype=np.float64)
    n, mean = len(found), float(found.mean())
    return _around(mean, float(found.std(ddof=1)) / math.sqrt(n), n - 1) if n > 1 else Interval(mean)


def _around(effect: float, error: float, freedom: float) -> Interval:
    half = student(freedom) * error
    return Interval(effect, effect - half, effect + half)


@cache
def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    With t = √freedom · tan(angle) its density is cos(angle)^(freedom - 1), which is summed by trapezes.
    """
    angles = np.linspace(0.0, np.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    areas = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(math.sqrt(freedom) * np.tan(np.interp(0.95, areas / areas[-1], angles)))
