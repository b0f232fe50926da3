"""Intervals of differences; their values are judged with those of recl.json."""

import numpy as np

from txl_lightning.evaluation.recl.group_comparisons import (
    loss_differences,
)

BLOCKS = np.repeat(np.arange(40), 10)


def test_intervals_of_differences_cover_the_truth() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        own = random.normal(0, 1, (2, 1, 40))[..., BLOCKS] + random.normal(0, 1, (2, 1, 400))
        (difference,) = loss_differences({"a": own[0], "b": own[1] + 0.3}, BLOCKS)
        covered += difference["low"][0] <= -0.3 <= difference["high"][0]
    assert 0.92 <= covered / 400 <= 0.97
