"""Intervals over seeds and blocks: they cover the truth as often as they say."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from experiments.tables.intervals import (
    Interval,
    SeedSpread,
    difference,
    mean_over_seeds,
    of_repeats,
    pooled_spread,
    residual_spread,
    student,
)

# Seeds, blocks: the laptop run's test split has 33 blocks, WikiText-103's 30.
CASES = [(2, 60), (3, 33), (3, 30), (2, 5)]
TRUTH = 0.02


def simulated(random: np.random.Generator, S: int, B: int) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """Losses of two arms whose true difference is `TRUTH`, and the mean losses of other arms.

    Block b has a difficulty that all runs share and an own difference between the arms; every seed moves a run as a
    whole and every block of it.
    """
    text, own = random.normal(0, 0.3, B), random.normal(0, 0.02, B)

    def runs(offset: float) -> np.ndarray:
        return 2 + offset + text + random.normal(0, 0.01, (S, 1)) + random.normal(0, 0.01, (S, B))

    worse, better = runs(TRUTH) + own, runs(0.0)
    others = [list(2 + random.normal(0, 0.01, 2)) for _ in range(8)]
    return worse, better, others


class NaiveSpread(NamedTuple):
    """Variance between seeds and its degrees of freedom."""

    variance: float
    freedom: int


def naive_interval(values_SB: np.ndarray, spread: NaiveSpread) -> tuple[float, float, float]:
    """Low end, mean and high end of a value by seed and block of equal length, by drawing from its definition.

    Blocks are drawn with replacement, seeds as normally distributed with the spread of all arms.
    """
    random, n_draws, (S, B) = np.random.default_rng(3), 40_000, values_SB.shape
    interaction, blocks = 0.0, values_SB.mean(axis=0)
    if S > 1:
        rest = [
            v - values_SB[:, b].mean() - values_SB[s].mean() + values_SB.mean()
            for (s, b), v in np.ndenumerate(values_SB)
        ]
        interaction = sum(x * x for x in rest) / ((S - 1) * (B - 1)) / S
    text = max(0.0, 1 - interaction / np.var(blocks, ddof=1)) ** 0.5
    if B < 30:
        quantile = np.quantile(random.standard_t(B - 1, 400_000), 0.975)
        text *= (B / (B - 1)) ** 0.5 * quantile / 1.96
    effect = blocks.mean()
    drawn = effect + text * (random.choice(blocks - effect, (n_draws, B)).mean(axis=1))
    drawn += (spread.variance / S) ** 0.5 * random.standard_t(spread.freedom, n_draws)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(effect), float(high)


SLOW = [pytest.param(*case, 4000, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("S", "B", "simulations"), [(2, 5, 500), *SLOW])
def test_intervals_cover_the_truth(S: int, B: int, simulations: int) -> None:
    random = np.random.default_rng(5)
    weights = np.full(B, 1000.0)
    covered = 0
    for i in range(simulations):
        worse, better, others = simulated(random, S, B)
        spread = residual_spread(
            [[dict(enumerate(runs)) for runs in (worse.mean(axis=1), better.mean(axis=1), *others)]]
        )
        found = difference(worse, better, weights, spread, seed=i, resamples=400)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= TRUTH <= found.high
    assert abs(covered / simulations - 0.95) <= (0.02 if simulations > 1000 else 0.04) + 1e-9


@pytest.mark.parametrize("S", [3, 1])
@pytest.mark.parametrize("n_blocks", [41, 5])
def test_intervals_are_those_of_their_definition(S: int, n_blocks: int) -> None:
    random = np.random.default_rng([S, n_blocks])
    text = random.normal(2, 0.3, n_blocks)

    def runs(count: int, offset: float) -> np.ndarray:
        return text + random.normal(offset, 0.05, (count, n_blocks)) + random.normal(0, 0.02, (count, 1))

    worse, better = runs(S, 0.05) + random.normal(0, 0.05, n_blocks), runs(S, 0.0)
    found = difference(worse, better, np.full(n_blocks, 1000.0), SeedSpread(4e-4, 7))
    low, effect, high = naive_interval(worse - better, NaiveSpread(8e-4, 7))
    assert found.effect == pytest.approx(effect)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.04 * (high - low))


def test_the_spread_is_pooled_over_arms() -> None:
    """Sums of squares 0.5, 8 and none, from 1, 2 and 0 degrees of freedom."""
    assert pooled_spread([[1.0, 2.0], [4.0, 8.0, 6.0], [5.0]]) == SeedSpread(pytest.approx(8.5 / 3), 3)


def test_what_moves_all_runs_of_a_seed_is_no_spread() -> None:
    """Two arms: deviations of (1, -1, 0) and its opposite, each halved, from 2 degrees of freedom; a third arm fits."""
    seed = {1: 10.0, 2: -7.0, 3: 40.0}
    one = {s: 5 + seed[s] + d for s, d in ((1, 1.0), (2, -1.0), (3, 0.0))}
    other = {s: 2 + seed[s] for s in seed}
    assert residual_spread([[one, other]]) == SeedSpread(pytest.approx(0.5), 2)
    assert residual_spread([[one, other, {2: 4.0}]]) == SeedSpread(pytest.approx(0.5), 2)
    elsewhere = [
        {1: 3.0, 2: 5.0},
        {1: 1.0, 2: 1.0},
    ]  # another text has seed effects of its own: 0.5 four times, squared
    assert residual_spread([[one, other], elsewhere]) == SeedSpread(pytest.approx(2 / 3), 3)
    assert residual_spread([]) == residual_spread([[{1: 1.0}, {1: 2.0}]]) == SeedSpread(0.0, 0)


def test_long_blocks_move_an_interval_more() -> None:
    """The variance of a mean over drawn blocks is Σ w² (v - mean)² / (Σ w)²."""
    values, weights = np.tile([1.0, 2.0, 4.0], 20), np.tile([3.0, 1.0, 1.0], 20)
    mean = (3 * 1 + 2 + 4) / 5
    error = math.sqrt(20 * (9 * (1 - mean) ** 2 + (2 - mean) ** 2 + (4 - mean) ** 2)) / 100
    found = mean_over_seeds(values[None], weights, SeedSpread(0.0, 4))
    assert found.low is not None
    assert found.high is not None
    assert (found.effect, found.high - found.low) == (pytest.approx(mean), pytest.approx(2 * 1.96 * error, rel=0.05))


def test_the_share_of_the_seeds_is_students_exactly() -> None:
    """Where the text changes nothing: effect ± t · √(2 · variance / S), and √(variance / S) for a mean."""
    worse, better = np.full((3, 40), 2.03), np.full((3, 40), 2.0)
    spread = SeedSpread(3e-4, 6)
    found, half = difference(worse, better, np.ones(40), spread), student(6) * math.sqrt(2e-4)
    assert (found.effect, found.low, found.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half), rel=1e-5)
    alone = mean_over_seeds(np.zeros((3, 40)), np.ones(40), spread)
    assert (alone.low, alone.high) == pytest.approx((-student(6) * 1e-2, student(6) * 1e-2), rel=1e-4)


def test_one_seed_everywhere_has_an_effect_and_no_interval() -> None:
    worse, better = np.full((1, 4), 2.5), np.full((1, 4), 2.0)
    assert difference(worse, better, np.ones(4), pooled_spread([[1.0], [2.0]])) == Interval(0.5)
    assert mean_over_seeds(worse, np.ones(4), pooled_spread([])) == Interval(2.5)
    with pytest.raises(ValueError, match="do not fit"):
        difference(worse, better, np.ones(3), pooled_spread([]))


def test_blocks_count_by_their_tokens() -> None:
    worse, better = np.array([[3.0, 2.0]]), np.array([[1.0, 2.0]])
    assert difference(worse, better, np.array([1.0, 3.0]), pooled_spread([])).effect == pytest.approx(0.5)


def test_students_quantiles_and_intervals_of_repeats() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 5: 2.5706, 30: 2.0423}
    assert {n: student(n) for n in tabled} == pytest.approx(tabled, rel=1e-3)
    found = of_repeats([1.0, 2.0, 3.0])
    assert (found.effect, found.low) == (2.0, pytest.approx(2 - 4.3027 / 3**0.5, rel=1e-3))
    assert of_repeats([1.0]) == Interval(1.0)
