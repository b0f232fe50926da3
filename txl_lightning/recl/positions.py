"""Positions at which a group of models is scored, in blocks that share windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from txl_lightning.errors import require
from txl_lightning.recl.effective_context import Integers

FEWEST_BLOCKS = 30  # for intervals from resampled blocks
# positions per block, in context grids: the windows that only its ends need are then about an eighth more
WIDTH = 4


def position_blocks(
    n_tokens: int,
    n_positions: int,
    contexts: Sequence[int],
    seed: int | None = None,
) -> tuple[Integers, Integers]:
    """Return P positions t, ascending, each with the longest context before it, and the block index per position.

    The split is divided into equal stretches. A stretch's block ends at its last token, or with a seed at a random one
    where the block still fits into the stretch. Positions within a block are Δ apart, the step in the grid of C
    contexts. One window then serves up to C positions in a block, and P_b positions need P_b + C - 1 windows, the last
    C - 1 shorter.

        blocks = max(30, P / (4 C)), at most P

    On an uneven grid, Δ is its smallest step. Larger blocks would save at most an eighth of the tokens, but fewer
    blocks make wider intervals. Where a stretch is too short for positions that are Δ apart, they are Δ / 2, Δ / 3, …
    apart.

    Args:
        n_tokens: tokens in the split.
        n_positions: P.
        contexts: the grid, ascending.
        seed: draws where blocks lie in their stretches; None for the ends.

    Raises:
        OptionError: the split has fewer such positions.
    """
    max_context = contexts[-1]
    available = n_tokens - max_context
    allowed = f"must be below the {n_tokens} tokens of the split"
    require(available > 0, "max_context", max_context, allowed)
    allowed = f"must be in 1 … {available}, the positions with {max_context} tokens before them"
    require(1 <= n_positions <= available, "n_positions", n_positions, allowed)
    step = int(np.diff(contexts).min())
    n_blocks = max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts)))
    n_blocks = min(n_blocks, n_positions)
    edges, sizes = _stretches(n_tokens, n_positions, n_blocks, max_context, step)
    generator = np.random.default_rng(seed)
    positions = []
    for number, size in enumerate(sizes):
        start = edges[number]
        end = edges[number + 1]
        distance = step
        if size * step > end - start:
            distance = max(1, step // -(-size * step // (end - start)))
        block = end - np.arange(size)[::-1] * distance
        if seed is not None and size > 0:
            room = block[0] - max(max_context, start + 1)
            block -= generator.integers(room + 1)
        positions.append(block)
    numbers = np.repeat(np.arange(n_blocks), sizes)
    _, blocks = np.unique(numbers, return_inverse=True)  # without empty ones
    return np.concatenate(positions), blocks


def _stretches(
    n_tokens: int,
    n_positions: int,
    n_blocks: int,
    max_context: int,
    step: int,
) -> tuple[Integers, Integers]:
    """Return the stretches' edges and each one's positions, in proportion to its length.

    The first stretch leaves room for the longest context if not every stretch has that much.
    """
    last = n_tokens - 1
    first = 0
    if last // n_blocks < max_context + -(-n_positions // n_blocks) * step:
        first = max_context - 1
    room = last - first
    lengths = np.arange(n_blocks + 1) * room // n_blocks
    positions_before = -(-lengths * n_positions // room)
    return first + lengths, np.diff(positions_before)
