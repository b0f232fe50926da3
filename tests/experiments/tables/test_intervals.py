"""Intervals over seeds and blocks: they cover the truth as often as they say."""

import numpy as np
import pytest

from experiments.tables.shared import intervals
from experiments.tables.shared.intervals import (
    Interval,
    SeedSpread,
    difference,
    mean_over_seeds,
    of_repeats,
    pooled_spread,
    student,
)

SIMULATIONS = 4000
# Paired, seeds, blocks: the laptop run's test split has 33 blocks, WikiText-103's 30.
CASES = [(True, 3, 60), (False, 2, 60), (False, 3, 33), (False, 3, 30), (True, 3, 5), (False, 2, 5)]
TRUTH = 0.02


def simulated(
    random: np.random.Generator, S: int, B: int, shared: bool
) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """Losses of two arms whose true difference is `TRUTH`, and the mean losses of other arms.

    Block b has a difficulty that all runs share and an own difference between the arms; every seed moves a run as a
    whole (with `shared` both arms alike, and a little by itself) and every block of it.
    """
    text, own = random.normal(0, 0.3, B), random.normal(0, 0.02, B)

    def runs(offset: float, seeds: np.ndarray) -> np.ndarray:
        return 2 + offset + text + seeds[:, None] + random.normal(0, 0.01, (S, B))

    common = random.normal(0, 0.01, S) if shared else np.zeros(S)
    alone = 0.004 if shared else 0.01
    worse = runs(TRUTH, common + random.normal(0, alone, S)) + own
    better = runs(0.0, common + random.normal(0, alone, S))
    others = [list(2 + random.normal(0, 0.01, 2)) for _ in range(8)]
    return worse, better, others


@pytest.mark.parametrize(("paired", "S", "B"), CASES)
def test_intervals_cover_the_truth(paired: bool, S: int, B: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 400)
    random = np.random.default_rng(5)
    weights = np.full(B, 1000.0)
    covered = 0
    for i in range(SIMULATIONS):
        worse, better, others = simulated(random, S, B, paired)
        spread = pooled_spread([*others, worse.mean(axis=1).tolist(), better.mean(axis=1).tolist()])
        found = difference(worse, better, weights, spread, paired=paired, seed=i)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= TRUTH <= found.high
    assert 0.93 <= covered / SIMULATIONS <= 0.97, covered / SIMULATIONS


def test_the_share_of_the_seeds_is_students_exactly() -> None:
    """Where the text changes nothing, the interval is Student's t interval of the seeds."""
    pairs = np.array([0.01, 0.02, 0.06])
    worse, better = np.tile(2 + pairs[:, None], 40), np.full((3, 40), 2.0)
    found = difference(worse, better, np.ones(40), SeedSpread(1.0, 9), paired=True)
    alone = of_repeats(pairs)
    assert (found.effect, found.low, found.high) == pytest.approx((alone.effect, alone.low, alone.high), rel=1e-5)


def test_equal_values_take_the_spread_of_all_arms() -> None:
    """Three runs without a gain do not show that no run would gain."""
    none, spread = np.zeros((3, 40)), SeedSpread(3e-4, 6)
    half = student(6) * 1e-2
    found = mean_over_seeds(none, np.ones(40), spread)
    assert (found.low, found.high) == pytest.approx((-half, half), rel=1e-4)
    assert mean_over_seeds(none, np.ones(40), SeedSpread(0.0, 0)) == Interval(0.0)


def test_pairs_cancel_what_seeds_share() -> None:
    random = np.random.default_rng(2)
    offsets, text = np.array([0.0, 0.1, 0.2])[:, None], random.normal(2, 0.3, 50)
    better = text + offsets + random.normal(0, 0.001, (3, 50))
    worse = text + offsets + 0.01 + random.normal(0, 0.001, (3, 50))
    spread = pooled_spread([better.mean(axis=1).tolist(), worse.mean(axis=1).tolist()])
    paired, alone = (difference(worse, better, np.ones(50), spread, paired=flag) for flag in (True, False))
    assert paired.low is not None
    assert alone.low is not None
    assert paired.low > 0 > alone.low


def test_one_seed_everywhere_has_an_effect_and_no_interval() -> None:
    worse, better = np.full((1, 4), 2.5), np.full((1, 4), 2.0)
    assert difference(worse, better, np.ones(4), pooled_spread([[1.0], [2.0]]), paired=True) == Interval(0.5)
    assert mean_over_seeds(worse, np.ones(4), pooled_spread([])) == Interval(2.5)
    with pytest.raises(ValueError, match="do not fit"):
        difference(worse, better, np.ones(3), pooled_spread([]), paired=False)


def test_a_single_block_of_text_is_no_evidence() -> None:
    one, other = np.array([[2.0], [2.1], [2.2]]), np.array([[1.9], [2.0], [2.1]])
    found = difference(one, other, np.array([400.0]), SeedSpread(0.01, 4), paired=True)
    assert found == Interval(pytest.approx(0.1))


def test_blocks_count_by_their_tokens() -> None:
    worse, better = np.array([[3.0, 2.0]]), np.array([[1.0, 2.0]])
    assert difference(worse, better, np.array([1.0, 3.0]), pooled_spread([]), paired=False).effect == pytest.approx(0.5)


def test_students_quantiles_and_intervals_of_repeats() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 5: 2.5706, 30: 2.0423}
    assert {n: student(n) for n in tabled} == pytest.approx(tabled, rel=1e-3)
    found = of_repeats([1.0, 2.0, 3.0])
    assert (found.effect, found.low) == (2.0, pytest.approx(2 - 4.3027 / 3**0.5, rel=1e-3))
    assert of_repeats([1.0]) == Interval(1.0)


def test_a_change_of_unit_moves_effect_and_ends() -> None:
    assert Interval(2, 1, 3).times(10) == Interval(20, 10, 30)
