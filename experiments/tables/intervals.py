"""95 % intervals for differences: seeds and text blocks vary together.

An arm trained with seed s has the loss L[s, b] on block b of the test split. Chance moves a mean loss in two
ways: which seeds were run, and which text was scored. Both sides of a difference share them: arms are compared over
the seeds that both have, with the same training text, on the blocks that both scored.
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
    """Variance of a mean, with its degrees of freedom: 0 where nothing was repeated."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Interval:
    """Effect with its 95 % interval; an end is None where it is open, both are where chance cannot be told."""

    effect: float
    low: float | None = None
    high: float | None = None

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return effect and ends in another unit; the conversion keeps their order."""
        ends = [None if end is None else change(end) for end in (self.low, self.high)]
        return Interval(change(self.effect), *ends)

    def times(self, factor: float) -> Interval:
        """Return effect and ends times a positive factor."""
        return self.mapped(lambda value: value * factor)


def seed_spread(texts: Sequence[Sequence[Mapping[int, float]]]) -> Spread:
    """Pool the variance between runs that differ in nothing but the seed, over each text's arms.

        variance = Σ (L_as - α_a - β_s)² / freedom,     freedom = Σ_text (runs - rank of arms and seeds)

    Arms α and seeds β are fitted by least squares in each text. Runs with one seed read the same part of the text. This
    moves them alike, and cancels in a difference between arms over the seeds that both have. Two or three seeds of
    one arm say little about its variance; all arms together say enough if the seed moves them alike.

    Args:
        texts: for each text its arms, each a loss by seed.
    """
    total = 0.0
    freedom = 0
    for arms in texts:
        design, losses = _design(arms)
        effects, _, rank, _ = np.linalg.lstsq(design, losses)
        rest = losses - design @ effects
        total += float(rest @ rest)
        freedom += len(losses) - int(rank)
    if not freedom:
        return Spread(0.0, 0)
    return Spread(total / freedom, freedom)


def _design(arms: Sequence[Mapping[int, float]]) -> tuple[Array, Array]:
    """Return a row with ones and zeros for each run, a column for each arm and seed, and the centred losses."""
    seeds: list[int] = []
    if len(arms) > 1:
        seeds = sorted({seed for by_seed in arms for seed in by_seed})
    rows = []
    losses = []
    for arm, by_seed in enumerate(arms):
        for seed, loss in by_seed.items():
            row = np.zeros(len(arms) + len(seeds))
            row[arm] = 1.0
            if seeds:
                row[len(arms) + seeds.index(seed)] = 1.0
            rows.append(row)
            losses.append(loss)
    return np.stack(rows), np.array(losses) - np.mean(losses)


def over_blocks(values_SB: Array, weights_B: Array, seeds: Spread) -> Interval:
    """Return a value's mean over seeds and text blocks with its interval.

        effect ± t · √(V_seeds / S + V_blocks)
        V_blocks = Σ_b w_b² (value_b - effect)² / (Σ_b w_b)² · B / (B - 1)

    t is Student's quantile for the sum's degrees of freedom (Satterthwaite): from the seeds' variance, and
    B - 1. Without a repeated seed or a second block chance cannot be told.

    Args:
        values_SB: value for each block, a row for each seed.
        weights_B: tokens in each block.
        seeds: variance over seeds for one run.
    """
    S, B = values_SB.shape
    values_B = values_SB.mean(axis=0)
    shares_B = weights_B / weights_B.sum()
    effect = float(values_B @ shares_B)
    if not seeds.freedom or B < 2:
        return Interval(effect)
    rest_B = shares_B * (values_B - effect)
    of_seeds = seeds.variance / S
    of_blocks = float(rest_B @ rest_B) * B / (B - 1)
    variance = of_seeds + of_blocks
    freedom = 1.0
    if variance:
        freedom = variance**2 / (of_seeds**2 / seeds.freedom + of_blocks**2 / (B - 1))
    return _around(effect, math.sqrt(variance), freedom)


def of_repeats(values: Sequence[float] | Array) -> Interval:
    """Return the mean over repeated measurements with its 95 % interval by Student's t."""
    repeats = np.asarray(values, dtype=np.float64)
    n = len(repeats)
    mean = float(repeats.mean())
    if n == 1:
        return Interval(mean)
    return _around(
        mean,
        float(repeats.std(ddof=1)) / math.sqrt(n),
        n - 1,
    )


def _around(effect: float, error: float, freedom: float) -> Interval:
    half = student(freedom) * error
    return Interval(effect, effect - half, effect + half)


@cache
def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    With t = √freedom · tan(angle) its density is cos(angle)^(freedom - 1), summed here by trapezes.
    """
    angles = np.linspace(0.0, np.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    steps = (density[1:] + density[:-1]) / 2
    areas = np.concatenate([[0.0], np.cumsum(steps)])
    angle = np.interp(
        0.95,
        areas / areas[-1],
        angles,
    )
    return float(math.sqrt(freedom) * np.tan(angle))
