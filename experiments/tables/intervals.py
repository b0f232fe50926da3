"""95 % intervals of differences between arms: seeds and blocks of text vary together.

The loss of seed s of an arm on block b of the test split is L[s, b]. Two sources of chance move a mean loss: which
seeds were run, and which text was scored. Both are common to the two sides of a difference: arms are compared over the
seeds that both have, which read the same text in training, on the blocks that both scored. Only the influence on the
difference counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    assumption of an analysis of variance.
    """
    return residual_spread([[dict(enumerate(values))] for values in arms])


def residual_spread(texts: Sequence[Sequence[Mapping[int, float]]]) -> SeedSpread:
    """Pool what arm and seed leave unexplained, over all runs of each text (a randomized block design).

        variance = Σ (L_as - α_a - β_s)² / freedom,     freedom = Σ_text (runs - rank of the arms and seeds)

    α and β are fitted by least squares in each text. Runs of one seed read the same part of the text, which moves them
    alike: β is larger than the rest, and cancels in a difference of arms over the seeds that both have.

    Args:
        texts: for each text its arms, each a loss by seed.
    """
    total, freedom = 0.0, 0
    for arms in texts:
        seeds = sorted({seed for by_seed in arms for seed in by_seed}) if len(arms) > 1 else []
        runs = [(i, seed, loss) for i, by_seed in enumerate(arms) for seed, loss in by_seed.items()]
        rows = [[*(arm == i for arm in range(len(arms))), *(one == seed for one in seeds)] for i, seed, _ in runs]
        losses = np.array([loss for *_, loss in runs])
        design, losses = np.array(rows, dtype=np.float64), losses - losses.mean()
        effects, _, rank, _ = np.linalg.lstsq(design, losses)
        total += float(((losses - design @ effects) ** 2).sum())
        freedom += len(runs) - int(rank)
    return SeedSpread(total / freedom, freedom) if freedom else SeedSpread(0.0, 0)


def difference(worse_SB: Array, better_SB: Array, weights_B: Array, spread: SeedSpread, **options: int) -> Interval:
    """Return the mean loss of one arm minus that of another, with a 95 % interval over seeds and blocks together.

        effect  = Σ_b w_b mean_s (worse[s, b] - better[s, b]) / Σ_b w_b
        effect* = (the same over blocks drawn with replacement) + sigma · t,     t ~ Student(spread.freedom)
        sigma²  = 2 · spread.variance / S

    The ends are quantiles of effect*. Blocks are resampled, t is integrated. Seeds are too few to resample (an interval
    from three covers the truth four times in five): their share has the Student distribution, exact for normally
    distributed seeds.

    Args:
        worse_SB: mean loss of each block in nats, a row for each of S seeds.
        better_SB: the same of the other arm, of the same seeds in the same order.
        weights_B: tokens of each block.
        spread: of `residual_spread`.
        options: as of `mean_over_seeds`.

    Returns:
        The difference; without ends where chance cannot be told: nothing was repeated, or the text is a single block.

    Raises:
        ValueError: the shapes do not fit.
    """
    if worse_SB.shape != better_SB.shape or worse_SB.shape[1] != len(weights_B):
        raise ValueError(f"blocks of {worse_SB.shape}, {better_SB.shape} and {weights_B.shape} do not fit")
    return mean_over_seeds(worse_SB - better_SB, weights_B, SeedSpread(2 * spread.variance, spread.freedom), **options)


def mean_over_seeds(
    values_SB: Array, weights_B: Array, spread: SeedSpread, seed: int = 1, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean of a value that each run has by itself, such as a gain, with its interval as in `difference`.

    Args:
        values_SB: value of each block, a row per seed.
        weights_B: tokens of each block.
        spread: of one run's value.
        seed: of the resampling.
        resamples: of the blocks.
    """
    share = SeedSpread(spread.variance / len(values_SB), spread.freedom)
    return _resampled(values_SB.mean(axis=0), weights_B, share, _of_seeds_in_blocks(values_SB), seed, resamples)


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
