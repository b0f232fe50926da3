"""Positions at which a group of models is scored, in blocks that share windows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from txl_lightning.errors import require
from txl_lightning.recl.effective_context import Integers

FEWEST_BLOCKS = 30  # for intervals from resampled blocks
WIDTH = 4  # of a block, in grids of contexts: the windows that only its ends need are then about an eighth more


def position_blocks(
    n_tokens: int, n_positions: int, contexts: Sequence[int], seed: int | None = None
) -> tuple[Integers, Integers]:
    """Return P positions t, ascending, each with the longest context before it, and the block of each position.

    The split is divided into equal stretches. The block of a stretch ends at its last token, or
    with a seed at one drawn from those at which the block fits into the stretch. Positions within a
    block are Δ apart, the step of the grid of C contexts. One window of tokens then serves up to C
    positions of a block, and P_b positions need P_b + C - 1 windows, the last C - 1 of them
    shorter.

        rasters = ⌈P Δ / (positions with the longest context before them)⌉
        blocks = max(30, P / (4 C rasters)), at most P

    On an uneven grid, Δ is its smallest step.

    Larger blocks would save at most an eighth of the tokens, but fewer blocks make wider intervals.
    Where the split is too short for P positions that are Δ apart, blocks have `rasters` positions
    in each step.

    Args:
        n_tokens: tokens of the split.
        n_positions: P.
        contexts: the grid, ascending.
        seed: of the places of the blocks in their stretches; None for the ends.

    Raises:
        OptionError: the split has fewer such positions.
    """
    max_context = contexts[-1]
    available = n_tokens - max_context
    require(
        available > 0,
        "max_context",
        max_context,
        f"must be below the {n_tokens} tokens of the split",
    )
    allowed = f"must be in 1 … {available}, the positions of the split with {max_context} tokens before them"
    require(1 <= n_positions <= available, "n_positions", n_positions, allowed)

    step = int(np.diff(contexts).min())
    rasters = -(-n_positions * step // available)
    n_blocks = max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts) * rasters))
    n_blocks = min(n_positions, n_blocks)
    longest = -(-n_positions // n_blocks) * step
    fits_everywhere = (n_tokens - 1) // n_blocks >= max_context + longest
    before_first = 0 if fits_everywhere else max_context - 1
    room = n_tokens - 1 - before_first
    ends = np.arange(n_blocks + 1, dtype=np.int64) * room // n_blocks
    sizes = np.diff(
        -(-ends * n_positions // room)
    )  # in proportion to the stretches, so that each has room

    generator = np.random.default_rng(seed)
    positions = []
    for size, (start, end) in zip(sizes.tolist(), pairwise(ends.tolist()), strict=True):
        block = before_first + end - _offsets(size, end - start, step)[::-1]
        if seed is not None and size:
            first = max(max_context, before_first + start + 1)
            block -= generator.integers(block[0] - first + 1)
        positions.append(block)
    return np.concatenate(positions), np.repeat(np.cumsum(sizes > 0) - 1, sizes)


def _offsets(size: int, length: int, step: int) -> Integers:
    """Return `size` different offsets in 0 … length - 1, ascending: multiples of `step`, then rasters between them."""
    step = min(step, length)
    rasters = min(step, -(-size // (length // step)))
    firsts = np.arange(rasters, dtype=np.int64) * step // rasters
    offsets = (firsts[:, None] + np.arange(0, length, step)).ravel()
    return np.sort(offsets[offsets < length][:size])
