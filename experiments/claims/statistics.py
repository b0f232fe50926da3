"""Intervals of differences between arms: seeds and blocks of text vary together.

The loss of seed s of an arm on block b of the test split is L[s, b]. Two sources of chance move a mean loss: which
seeds were run, and which text was scored. All runs are scored on the same blocks, so the text is common to both sides
of a difference and only what it does to the difference counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class SeedSpread:
    """How far runs that differ in nothing but the seed lie apart.

    Args:
        variance: of the mean loss of one run, pooled over arms: Σ_arm Σ_s (L_s - mean)² / freedom.
        freedom: degrees of freedom, Σ_arm (seeds - 1); 0 where no arm has two seeds.
    """

    variance: float
    freedom: int


@dataclass(frozen=True)
class Interval:
    """A difference with its confidence interval.

    Args:
        effect: the difference, in the unit of the losses.
        low: lower end of the 95 % interval.
        high: upper end.
        smallest: the smallest effect that this run could have seen: half the width of the interval.
    """

    effect: float
    low: float
    high: float

    @property
    def smallest(self) -> float:
        """Half the width: an effect of this size would just have excluded zero."""
        return (self.high - self.low) / 2


def pooled_spread(arms: Sequence[Sequence[float]]) -> SeedSpread:
    """Variance between seeds, pooled over arms, each a list of its runs' mean losses.

    Two or three seeds alone say next to nothing of their own variance; all arms together do, if the seed moves them
    alike (the assumption of an analysis of variance).
    """
    deviations = [np.asarray(losses) - np.mean(losses) for losses in arms if len(losses) > 1]
    freedom = sum(len(part) - 1 for part in deviations)
    if not freedom:
        return SeedSpread(0.0, 0)
    return SeedSpread(float(sum((part**2).sum() for part in deviations)) / freedom, freedom)


def difference(
    worse_SB: Array, better_SB: Array, weights_B: Array, spread: SeedSpread, *, paired: bool, seed: int = 1
) -> Interval | None:
    """Mean loss of one arm minus that of another, with a 95 % interval over seeds and blocks together.

        effect  = Σ_b w_b (mean_s worse[s, b] - mean_s better[s, b]) / Σ_b w_b
        effect* = (the same over blocks drawn with replacement) + sigma · t,     t ~ Student(freedom)

    Blocks are resampled. Seeds are too few to resample (three give an interval that covers the truth four times in
    five): their share is drawn from the Student distribution, exact for normally distributed seeds, with

        paired:    sigma² = variance of the differences seed by seed / S, freedom S - 1
        unpaired:  sigma² = spread.variance · (1 / S_worse + 1 / S_better), freedom of `spread`

    A block's difference also varies because seeds treat blocks differently. sigma has this share already, so the
    resampled differences are shrunk towards their mean by it.

    Args:
        worse_SB: mean loss of each block, a row a seed, in nats or the unit that the effect should have.
        better_SB: the same of the other arm; with `paired`, the same seeds in the same order.
        weights_B: tokens of each block.
        spread: between seeds, of all arms.
        paired: initialisation and data of equal seeds are the same on both sides. With fewer than three pairs the
            unpaired rule is used.
        seed: of the resampling.

    Returns:
        None where chance between seeds cannot be told: fewer than two seeds on both sides together with no pooled
        spread.

    Raises:
        ValueError: shapes that do not fit.
    """
    if worse_SB.shape[1:] != better_SB.shape[1:] or worse_SB.shape[1] != len(weights_B):
        raise ValueError(f"blocks of {worse_SB.shape}, {better_SB.shape} and {weights_B.shape} do not fit")
    if paired and len(worse_SB) >= 3 and worse_SB.shape == better_SB.shape:
        by_seed_S = (worse_SB - better_SB) @ weights_B / weights_B.sum()
        sigma, freedom = float(by_seed_S.std(ddof=1)) / len(by_seed_S) ** 0.5, len(by_seed_S) - 1
    elif spread.freedom:
        sigma = (spread.variance * (1 / len(worse_SB) + 1 / len(better_SB))) ** 0.5
        freedom = spread.freedom
    else:
        return None
    difference_B = worse_SB.mean(axis=0) - better_SB.mean(axis=0)
    effect = float(difference_B @ weights_B / weights_B.sum())
    by_chance = (
        of_seeds_in_blocks(worse_SB - better_SB) if paired else sum(map(of_seeds_in_blocks, (worse_SB, better_SB)))
    )
    text_share = max(0.0, 1 - by_chance / max(float(difference_B.var(ddof=1)), 1e-300)) ** 0.5
    random = np.random.default_rng(seed)
    blocks = over_blocks(effect + text_share * (difference_B - effect), weights_B, random)
    drawn = blocks + sigma * random.standard_t(freedom, RESAMPLES)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return Interval(effect, float(low), float(high))


def of_seeds_in_blocks(losses_SB: Array) -> float:
    """Variance of a block's mean over seeds that comes from the interaction of seed and block; 0 for one seed."""
    S, B = losses_SB.shape
    if S < 2 or B < 2:
        return 0.0
    rest = losses_SB - losses_SB.mean(axis=0) - losses_SB.mean(axis=1, keepdims=True) + losses_SB.mean()
    return float((rest**2).sum()) / ((S - 1) * (B - 1)) / S


def over_blocks(values_B: Array, weights_B: Array, random: np.random.Generator) -> Array:
    """Weighted means of as many blocks drawn with replacement, one a resample."""
    B = len(values_B)
    counts = random.multinomial(B, np.full(B, 1 / B), size=RESAMPLES)
    weights = counts * weights_B
    means: Array = weights @ values_B / weights.sum(axis=1)
    return means
