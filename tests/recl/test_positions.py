"""Blocks of positions: how many, where, and how many windows they need."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.recl.positions import position_blocks

SIZES = [
    (20, 20, {1}),
    (1000, 30, {33, 34}),
    (1920, 30, {64}),
    (10_000, 156, {64, 65}),
]


@pytest.mark.parametrize(("n_positions", "n_blocks", "block_sizes"), SIZES)
def test_blocks_are_four_grids_wide_or_thirty(n_positions, n_blocks, block_sizes):
    contexts = list(range(16, 257, 16))
    positions, blocks = position_blocks(1_000_000, n_positions, contexts)
    sizes = np.bincount(blocks)
    assert len(sizes) == n_blocks
    assert set(sizes) == block_sizes
    steps = np.diff(positions)
    assert set(steps[np.diff(blocks) == 0]) <= {16}
    begins_CP = positions - np.array(contexts)[:, None]
    assert len(np.unique(begins_CP)) <= n_positions + 15 * n_blocks  # windows
    assert positions[-1] == 999_999


N_TOKENS = st.integers(10, 600)
STEPS = st.integers(1, 20)
N_CONTEXTS = st.integers(2, 8)
SHARES = st.floats(0, 1)
SEEDS = st.none() | st.integers(0, 99)


@given(N_TOKENS, STEPS, N_CONTEXTS, SHARES, SEEDS)
def test_positions_are_in_order(n_tokens, step, n_contexts, share, seed):
    contexts = [2 + step * i for i in range(n_contexts)]
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


def test_a_seed_moves_every_block_within_its_stretch():
    contexts = list(range(32, 321, 32))
    plain, blocks = position_blocks(600_000, 10_000, contexts)
    stretch = 600_000 // 250
    assert blocks[-1] == 249
    moved = set()
    for seed in range(50):
        seeded, _ = position_blocks(600_000, 10_000, contexts, seed)
        moved_P = plain - seeded
        assert (np.diff(moved_P)[np.diff(blocks) == 0] == 0).all()
        moved.update(moved_P.tolist())
    assert min(moved) == 0
    assert 0.95 * (stretch - 40 * 32) < max(moved) < stretch  # blocks have 40 positions
