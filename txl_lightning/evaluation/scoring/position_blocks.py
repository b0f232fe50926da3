"""Positions at which models are scored by context: blocks of neighbours, spread evenly over a split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import require

FEWEST_BLOCKS = 30  # for intervals from resampled blocks
POSITIONS_VERSION = 2  # increase it when other positions are chosen; 1 were single positions
WIDTH = 4  # of a block, in grids of contexts: the windows that only its ends need are then about an eighth more


def position_blocks(
    n_tokens: int, n_positions: int, contexts: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return P positions t, ascending, each with the longest context before it, and the block of each position.

    The split is divided into equal stretches. The block of a stretch ends at its last token; positions within a
    block are Δ apart, the step of the grid of C contexts. One window of tokens then serves up to C positions of a
    block, and P_b positions need P_b + C - 1 windows, the last C - 1 of them shorter.

        blocks = max(30, P / 4C), at most P

    Larger blocks would save at most an eighth of the tokens, but fewer blocks make wider intervals. Where the split
    is too short for P positions that are Δ apart, blocks have several positions in each step.

    Args:
        n_tokens: tokens of the split.
        n_positions: P.
        contexts: the grid c_0, c_0 + Δ, ….

    Raises:
        OptionError: the split has fewer such positions.
    """
    step, max_context = contexts[1] - contexts[0], contexts[-1]
    allowed = f"must be below the {n_tokens} tokens of the split"
    require(max_context < n_tokens, "max_context", max_context, allowed)
    available = n_tokens - max_context
    allowed = f"must be in 1 … {available}, the positions of the split with {max_context} tokens before them"
    require(1 <= n_positions <= available, "n_positions", n_positions, allowed)

    rasters = -(-n_positions * step // available)
    n_blocks = min(n_positions, max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts) * rasters)))
    longest = -(-n_positions // n_blocks) * step
    before_first = 0 if (n_tokens - 1) // n_blocks >= max_context + longest else max_context - 1
    room = n_tokens - 1 - before_first
    ends = np.arange(n_blocks + 1, dtype=np.int64) * room // n_blocks
    sizes = np.diff(-(-ends * n_positions // room))  # in proportion to the stretches, so that each has room
    stretches = zip(sizes.tolist(), np.diff(ends).tolist(), ends[1:].tolist(), strict=True)
    positions = [before_first + end - _offsets(size, length, step)[::-1] for size, length, end in stretches]
    return np.concatenate(positions), np.repeat(np.cumsum(sizes > 0) - 1, sizes)


def _offsets(size: int, length: int, step: int) -> NDArray[np.int64]:
    """Return `size` different offsets in 0 … length - 1, ascending: multiples of `step`, then rasters between them."""
    step = min(step, length)
    rasters = min(step, -(-size // (length // step)))
    firsts = np.arange(rasters, dtype=np.int64) * step // rasters
    offsets = (firsts[:, None] + np.arange(0, length, step)).ravel()
    return np.sort(offsets[offsets < length][:size])
