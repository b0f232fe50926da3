"""Intervals over seeds and blocks."""

import math

import numpy as np
import pytest

from experiments.tables.intervals import (
    Interval,
    Spread,
    of_repeats,
    over_blocks,
    seed_spread,
    student,
)


def test_what_moves_all_runs_of_a_seed_is_no_spread() -> None:
    """Two arms: deviations of (1, -1, 0) and its opposite, each halved, from 2 degrees of freedom; a third arm fits."""
    one = {1: 16.0, 2: -3.0, 3: 45.0}
    other = {1: 12.0, 2: -5.0, 3: 42.0}
    assert seed_spread([[one, other]]) == Spread(pytest.approx(0.5), 2)
    assert seed_spread(
        [
            [
                one,
                other,
                {2: 4.0},
            ]
        ]
    ) == Spread(pytest.approx(0.5), 2)
    # Another text has seed effects of its own: 0.5 four times, squared.
    elsewhere = [{1: 3.0, 2: 5.0}, {1: 1.0, 2: 1.0}]
    assert seed_spread([[one, other], elsewhere]) == Spread(pytest.approx(2 / 3), 3)
    assert seed_spread([]) == Spread(0.0, 0)
    assert seed_spread([[{1: 1.0}, {1: 2.0}]]) == Spread(0.0, 0)


def test_seeds_alone_give_the_interval_of_flat_blocks() -> None:
    flat = np.full((3, 40), 0.03)
    interval = over_blocks(
        flat,
        np.ones(40),
        Spread(3e-4, 6),
    )
    half = student(6) * math.sqrt(1e-4)
    assert interval.effect == pytest.approx(0.03)
    assert interval.low == pytest.approx(0.03 - half)
    assert interval.high == pytest.approx(0.03 + half)


def test_the_variances_of_seeds_and_blocks_add_up() -> None:
    values = np.array([[1.0, 2.0, 4.0]])
    weights = np.array([3.0, 1.0, 1.0])
    squares = 9 * 0.8**2 + 0.2**2 + 2.2**2  # of the distances from 1.8
    error = math.sqrt(squares / 25 * 3 / 2)
    blocks = over_blocks(values, weights, Spread(0.0, 4))
    assert blocks.effect == pytest.approx(1.8)
    assert blocks.low == pytest.approx(1.8 - student(2) * error)
    both = over_blocks(
        values,
        weights,
        Spread(error**2, 2),
    )
    assert both.high == pytest.approx(1.8 + student(4) * math.sqrt(2) * error)


def test_without_a_repeated_seed_or_a_second_block_chance_cannot_be_told() -> None:
    assert over_blocks(
        np.full((1, 4), 0.5),
        np.ones(4),
        Spread(0.0, 0),
    ) == Interval(0.5)
    assert over_blocks(
        np.full((2, 1), 0.5),
        np.ones(1),
        Spread(1.0, 3),
    ) == Interval(0.5)


def test_students_quantiles_and_intervals_of_repeats() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 5: 2.5706, 30: 2.0423}
    assert {n: student(n) for n in tabled} == pytest.approx(tabled, rel=1e-3)
    interval = of_repeats([1.0, 2.0, 3.0])
    assert interval.effect == 2.0
    assert interval.low == pytest.approx(2 - 4.3027 / 3**0.5, rel=1e-3)
    assert of_repeats([1.0]) == Interval(1.0)
