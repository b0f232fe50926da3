"""Intervals over seeds and blocks."""

import math

import numpy as np
import pytest

from experiments.tables.intervals import Interval, Spread, of_repeats, over_blocks, seed_spread, student


def test_what_moves_all_runs_of_a_seed_is_no_spread() -> None:
    """Two arms: deviations of (1, -1, 0) and its opposite, each halved, from 2 degrees of freedom; a third arm fits."""
    seed = {1: 10.0, 2: -7.0, 3: 40.0}
    one = {s: 5 + seed[s] + d for s, d in ((1, 1.0), (2, -1.0), (3, 0.0))}
    other = {s: 2 + seed[s] for s in seed}
    assert seed_spread([[one, other]]) == Spread(pytest.approx(0.5), 2)
    assert seed_spread([[one, other, {2: 4.0}]]) == Spread(pytest.approx(0.5), 2)
    # Another text has seed effects of its own: 0.5 four times, squared.
    elsewhere = [{1: 3.0, 2: 5.0}, {1: 1.0, 2: 1.0}]
    assert seed_spread([[one, other], elsewhere]) == Spread(pytest.approx(2 / 3), 3)
    assert seed_spread([]) == seed_spread([[{1: 1.0}, {1: 2.0}]]) == Spread(0.0, 0)


def test_the_variances_of_seeds_and_blocks_add_up() -> None:
    """Seeds alone, blocks alone, and both with the degrees of freedom between them."""
    seeds, flat = Spread(3e-4, 6), np.full((3, 40), 0.03)
    half = student(6) * math.sqrt(1e-4)
    alone = over_blocks(flat, np.ones(40), seeds)
    assert (alone.effect, alone.low, alone.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half))
    values, weights = np.array([[1.0, 2.0, 4.0]]), np.array([3.0, 1.0, 1.0])
    error = math.sqrt((9 * (1 - 1.8) ** 2 + (2 - 1.8) ** 2 + (4 - 1.8) ** 2) / 25 * 3 / 2)
    blocks = over_blocks(values, weights, Spread(0.0, 4))
    assert (blocks.effect, blocks.low) == pytest.approx((1.8, 1.8 - student(2) * error))
    both = over_blocks(values, weights, Spread(error**2, 2))
    assert both.high == pytest.approx(1.8 + student(4) * math.sqrt(2) * error)


def test_without_a_repeated_seed_or_a_second_block_chance_cannot_be_told() -> None:
    assert over_blocks(np.full((1, 4), 0.5), np.ones(4), seed_spread([[{1: 1.0}, {1: 2.0}]])) == Interval(0.5)
    assert over_blocks(np.full((2, 1), 0.5), np.ones(1), Spread(1.0, 3)) == Interval(0.5)


def test_students_quantiles_and_intervals_of_repeats() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 5: 2.5706, 30: 2.0423}
    assert {n: student(n) for n in tabled} == pytest.approx(tabled, rel=1e-3)
    found = of_repeats([1.0, 2.0, 3.0])
    assert (found.effect, found.low) == (2.0, pytest.approx(2 - 4.3027 / 3**0.5, rel=1e-3))
    assert of_repeats([1.0]) == Interval(1.0)
