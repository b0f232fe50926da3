"""Blocks of positions: how many, where, and how many windows they need."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.recl.positions import position_blocks


def n_windows(positions: np.ndarray, contexts: list[int]) -> int:
    return len(np.unique(positions - np.array(contexts)[:, None]))


SIZES = [
    (20, 20, 1, 1),
    (30, 30, 1, 1),
    (1000, 30, 33, 34),
    (1920, 30, 64, 64),
    (10_000, 156, 64, 65),
]


@pytest.mark.parametrize(("n_positions", "n_blocks", "smallest", "largest"), SIZES)
def test_blocks_are_four_grids_wide_or_thirty(
    n_positions: int, n_blocks: int, smallest: int, largest: int
) -> None:
    contexts = list(range(16, 257, 16))
    positions, blocks = position_blocks(1_000_000, n_positions, contexts)
    sizes = np.bincount(blocks)
    assert (len(sizes), sizes.min(), sizes.max()) == (n_blocks, smallest, largest)
    assert set(np.diff(positions)[np.diff(blocks) == 0]) <= {16}
    assert n_windows(positions, contexts) <= n_positions + (len(contexts) - 1) * n_blocks
    ends = positions[np.append(np.diff(blocks) == 1, True)]
    assert np.ptp(np.diff(ends)) <= 1
    assert ends[-1] == 999_999


def test_a_short_split_has_several_positions_in_a_step() -> None:
    contexts = list(range(100, 1001, 100))
    positions, blocks = position_blocks(245_000, 5000, contexts)
    assert n_windows(positions, contexts) < 1.25 * 5000
    assert len(np.unique(blocks)) == 41


SEEDS = st.none() | st.integers(0, 99)


@given(
    st.integers(10, 600),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(2, 8),
    st.floats(0, 1),
    SEEDS,
)
def test_positions_are_in_order(
    n_tokens: int, first: int, step: int, n: int, share: float, seed: int | None
) -> None:
    contexts = [first + step * i for i in range(n)]
    available = n_tokens - contexts[-1]
    if available < 1:
        return
    n_positions = max(1, int(share * available))
    positions, blocks = position_blocks(n_tokens, n_positions, contexts, seed)
    assert len(positions) == len(blocks) == n_positions
    assert (np.diff(positions) > 0).all()
    assert contexts[-1] <= positions[0] <= positions[-1] < n_tokens
    assert blocks[0] == 0
    assert set(np.diff(blocks)) <= {0, 1}


def test_a_seed_moves_every_block_within_its_stretch() -> None:
    contexts = list(range(32, 321, 32))
    plain, blocks = position_blocks(600_000, 10_000, contexts)
    drawn = np.stack([position_blocks(600_000, 10_000, contexts, seed)[0] for seed in range(200)])
    moved, is_first = plain - drawn, np.diff(blocks, prepend=-1) == 1
    of_blocks = moved[:, is_first]
    assert np.array_equal(moved, of_blocks[:, blocks])
    room = 600_000 // 250 - 40 * 32  # of stretches with blocks of 40 positions
    assert of_blocks.shape == (200, 250)
    assert of_blocks.min() == 0
    assert abs(of_blocks[:, 1:].mean() / (room / 2) - 1) < 0.05
    assert drawn.min() >= 320
    assert np.array_equal(drawn[7], position_blocks(600_000, 10_000, contexts, 7)[0])
