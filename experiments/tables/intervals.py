"""95 % intervals of differences between arms: seeds and blocks of text vary together.

The loss of seed s of an arm on block b of the test split is L[s, b]. Two sources of chance move a mean loss: which
seeds were run, and which text was scored. All runs are scored on the same blocks, so the text is common to both sides
of a difference, and only its influence on the difference counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 10_000
TAIL = 0.025  # on each side of a 95 % interval
NORMAL = 1.959964  # 97.5 % quantile of the normal distribution
MANY_BLOCKS = 30  # whose resampled means spread as they should, within 6 %


@dataclass(frozen=True)
class SeedSpread:
    """Spread of runs that differ in nothing but the seed.

    Args:
        variance: of the mean loss of one run.
        freedom: degrees of freedom of the variance; 0 where nothing was repeated.
    """

    variance: float
    freedom: float


@dataclass(frozen=True)
class Interval:
    """Effect with its 95 % interval.

    Args:
        effect: estimate.
        low: lower end; None where nothing was repeated, so that chance cannot be told, or where it is open.
        high: upper end; None likewise.
    """

    effect: float
    low: float | None = None
    high: float | None = None

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return effect and ends after a change of unit that keeps their order."""
        ends = (None if end is None else change(end) for end in (self.low, self.high))
        return Interval(change(self.effect), *ends)

    def times(self, factor: float) -> Interval:
        """Return effect and ends times a positive factor."""
        return self.mapped(lambda value: value * factor)


def pooled_spread(arms: Sequence[Sequence[float]]) -> SeedSpread:
    """Pool the variance between seeds over arms, each a list of one value per run.

        variance = Σ_arm Σ_s (L_s - mean_arm)² / freedom,     freedom = Σ_arm (S_arm - 1)

    Two or three seeds say little of their own variance. All arms together say enough if the seed moves them alike, the
    assumption of an analysis of variance. `experiments/simulation.py` compares this rule with others.
    """
    deviations = [np.asarray(values) - np.mean(values) for values in arms if len(values) > 1]
    freedom = sum(len(part) - 1 for part in deviations)
    if not freedom:
        return SeedSpread(0.0, 0)
    return SeedSpread(float(sum((part**2).sum() for part in deviations)) / freedom, freedom)


def difference(
    worse_SB: Array,
    better_SB: Array,
    weights_B: Array,
    spread: SeedSpread,
    *,
    seed: int = 1,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the mean loss of one arm minus that of another, with a 95 % interval over seeds and blocks together.

        effect  = Σ_b w_b (mean_s worse[s, b] - mean_s better[s, b]) / Σ_b w_b
        effect* = (the same over blocks drawn with replacement) + sigma · t,     t ~ Student(spread.freedom)
        sigma²  = spread.variance · (1 / S_worse + 1 / S_better)

    The ends are quantiles of effect*. Blocks are resampled, t is integrated. Seeds are too few to resample (an interval
    from three covers the truth four times in five): their share has the Student distribution, exact for normally
    distributed seeds.

    Args:
        worse_SB: mean loss of each block in nats, a row per seed.
        better_SB: the same of the other arm.
        weights_B: tokens of each block.
        spread: between seeds, of all arms.
        seed: of the resampling.
        resamples: of the blocks.

    Returns:
        The difference; without ends where chance cannot be told: no arm has two seeds, or the text is a single block.

    Raises:
        ValueError: the shapes do not fit.
    """
    if worse_SB.shape[1:] != better_SB.shape[1:] or worse_SB.shape[1] != len(weights_B):
        raise ValueError(f"blocks of {worse_SB.shape}, {better_SB.shape} and {weights_B.shape} do not fit")
    difference_B = worse_SB.mean(axis=0) - better_SB.mean(axis=0)
    share = SeedSpread(spread.variance * (1 / len(worse_SB) + 1 / len(better_SB)), spread.freedom)
    by_chance = _of_seeds_in_blocks(worse_SB) + _of_seeds_in_blocks(better_SB)
    return _resampled(difference_B, weights_B, share, by_chance, seed, resamples)


def mean_over_seeds(values_SB: Array, weights_B: Array, spread: SeedSpread, *, seed: int = 1) -> Interval:
    """Return the mean of a value that each run has by itself, such as a gain, with its interval as in `difference`."""
    share = SeedSpread(spread.variance / len(values_SB), spread.freedom)
    return _resampled(values_SB.mean(axis=0), weights_B, share, _of_seeds_in_blocks(values_SB), seed, RESAMPLES)


def of_repeats(values: Sequence[float] | Array) -> Interval:
    """Return the mean of repeated measurements with its 95 % interval by Student's t."""
    found = np.asarray(values, dtype=np.float64)
    n, mean = len(found), float(found.mean())
    if n < 2:
        return Interval(mean)
    half = student(n - 1) * float(found.std(ddof=1)) / n**0.5
    return Interval(mean, mean - half, mean + half)


def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    angles, within = _student_by_angle(freedom)
    return float(freedom**0.5 * np.tan(np.interp(1 - 2 * TAIL, within, angles)))


def _below(values: Array, freedom: float) -> Array:
    """Probability that Student's t is below each value."""
    within = np.interp(np.arctan(np.abs(values) / freedom**0.5), *_student_by_angle(freedom))
    below: Array = 0.5 + np.sign(values) * within / 2
    return below


@cache
def _student_by_angle(freedom: float) -> tuple[Array, Array]:
    """Angles from 0 to π/2, and the probability of |t| < √freedom · tan(angle) for each.

    With t = √freedom · tan(angle) the density becomes cos(angle)^(freedom - 1); it is integrated by trapezes.
    """
    angles = np.linspace(0.0, np.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    areas = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return angles, areas / areas[-1]


def _resampled(
    values_B: Array, weights_B: Array, seeds: SeedSpread, by_chance: float, seed: int, resamples: int
) -> Interval:
    """Effect and ends: blocks drawn with replacement plus Student's share of the seeds.

    A block's value also varies because seeds treat blocks differently. `seeds` has this share already, so the
    resampled values are shrunk towards their mean by it (`by_chance`). Means of few resampled blocks spread too little:
    the values are stretched as far as Student's t with B - 1 degrees of freedom asks.
    """
    B, effect = len(values_B), float(values_B @ weights_B / weights_B.sum())
    if not seeds.freedom or B < 2:
        return Interval(effect)
    text_share = max(0.0, 1 - by_chance / max(float(values_B.var(ddof=1)), 1e-300)) ** 0.5
    if B < MANY_BLOCKS:
        text_share *= (B / (B - 1)) ** 0.5 * student(B - 1) / NORMAL
    random = np.random.default_rng(seed)
    drawn = _over_blocks(effect + text_share * (values_B - effect), weights_B, random, resamples)
    return Interval(effect, *(_quantile(drawn, seeds.variance**0.5, seeds.freedom, part) for part in (TAIL, 1 - TAIL)))


def _quantile(drawn: Array, sigma: float, freedom: float, part: float) -> float:
    """Quantile of a drawn value plus sigma · t, by bisection of the probability below it."""
    if not sigma:
        return float(np.quantile(drawn, part))
    far = sigma * (student(freedom) + 1)  # t alone is farther away in fewer than 2.5 %
    low, high = float(drawn.min()) - far, float(drawn.max()) + far
    for _ in range(30):  # to 1e-9 of the first bracket
        middle = (low + high) / 2
        if _below((middle - drawn) / sigma, freedom).mean() < part:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _of_seeds_in_blocks(losses_SB: Array) -> float:
    """Variance of a block's mean over seeds that comes from the interaction of seed and block; 0 for one seed."""
    S, B = losses_SB.shape
    if S < 2 or B < 2:
        return 0.0
    rest = losses_SB - losses_SB.mean(axis=0) - losses_SB.mean(axis=1, keepdims=True) + losses_SB.mean()
    return float((rest**2).sum()) / ((S - 1) * (B - 1)) / S


def _over_blocks(values_B: Array, weights_B: Array, random: np.random.Generator, resamples: int) -> Array:
    """Weighted means of as many blocks drawn with replacement, one a resample."""
    B = len(values_B)
    counts = random.multinomial(B, np.full(B, 1 / B), size=resamples)
    weights = counts * weights_B
    means: Array = weights @ values_B / weights.sum(axis=1)
    return means
