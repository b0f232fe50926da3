"""Positions at which a group of models is scored, in blocks that share windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

        rasters = ⌈P Δ / (positions with the longest context before them)⌉
        blocks = max(30, P / (4 C rasters)), at most P

    On an uneven grid, Δ is its smallest step.

    Larger blocks would save at most an eighth of the tokens, but fewer blocks make wider intervals. Where the split is
    too short for P positions that are Δ apart, blocks have `rasters` positions in each step.

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
    rasters = _ceil_divide(n_positions * step, available)
    width = WIDTH * len(contexts) * rasters
    n_blocks = max(FEWEST_BLOCKS, n_positions // width)
    n_blocks = min(n_positions, n_blocks)
    edges, sizes = _stretches(n_tokens, n_positions, n_blocks, max_context, step)
    generator = np.random.default_rng(seed)
    positions = []
    for number, size in enumerate(sizes):
        start = edges[number]
        end = edges[number + 1]
        offsets = _offsets(size, end - start, step)
        block = end - offsets[::-1]
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
) -> tuple[list[int], list[int]]:
    """Return the stretches' edges and each one's positions, in proportion to its length.

    The first stretch leaves room for the longest context if not every stretch has that much.
    """
    last = n_tokens - 1
    longest_block = _ceil_divide(n_positions, n_blocks) * step
    first = 0
    if last // n_blocks < max_context + longest_block:
        first = max_context - 1
    room = last - first
    lengths = np.arange(n_blocks + 1) * room // n_blocks
    edges = first + lengths
    positions_before = _ceil_divide(lengths * n_positions, room)
    return edges.tolist(), np.diff(positions_before).tolist()


def _offsets(size: int, length: int, step: int) -> Integers:
    """Return `size` different offsets in 0 … length - 1, ascending: multiples of `step`, then rasters between them."""
    step = min(step, length)
    rasters = min(
        step,
        _ceil_divide(size, length // step),
    )
    firsts = np.arange(rasters) * step // rasters
    multiples = np.arange(0, length, step)
    offsets = np.add.outer(firsts, multiples).ravel()
    offsets = offsets[offsets < length]
    return np.sort(offsets[:size])


def _ceil_divide(numerator: Any, denominator: int) -> Any:
    return -(-numerator // denominator)
