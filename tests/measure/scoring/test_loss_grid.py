"""One pass over windows: the losses of the direct way for every model for which it is exact."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.covering import product_of
from tests.measure.scoring.test_windows import ADAPTIVE, TOKENS, TRAINED, attention, reader_of, recurrent
from txl_lightning.measure.losses import (
    WindowReader,
    context_losses,
    loss_grid,
    position_blocks,
    window_reader,
)

Result = TypeVar("Result")

EXACT = {
    "relative": lambda: attention("relative", mem_len=0),
    "relative memory": lambda: attention("relative", mem_len=4, same_length=True),
    "relative zeros": lambda: attention("relative", mem_len=5, memory_start="zeros", ext_len=2, **ADAPTIVE),
    "relative clamp": lambda: attention("relative", mem_len=4, clamp_len=3),
    "shaw": lambda: attention("shaw", mem_len=0),
    "shaw memory": lambda: attention("shaw", mem_len=4),
    "alibi": lambda: attention("alibi", mem_len=4, clamp_len=7),
    "none": lambda: attention("none", mem_len=4),
    "rope": lambda: attention("rope", mem_len=4, interpolation=2.0, qk_norm=True),
    "lstm": lambda: recurrent("lstm"),
    "qrnn": lambda: recurrent("qrnn", **ADAPTIVE),
}
GRIDS = {"coarse": [3, 8, 13], "finer": [3, 5, 7, 9, 11, 13], "longer": [3, 8, 13, 18, 23, 28]}


def directly(reader: WindowReader, positions: np.ndarray, contexts: list[int]) -> np.ndarray:
    return np.stack([context_losses(reader, TOKENS, positions, context) for context in contexts])


@pytest.mark.parametrize(("kind", "grid"), product_of(EXACT, GRIDS))
def test_one_pass_gives_the_losses_of_windows_of_their_own(kind: str, grid: str) -> None:
    contexts, reader = GRIDS[grid], reader_of(EXACT[kind](), 70)
    assert reader.one_pass
    positions, _ = position_blocks(len(TOKENS), 35, contexts)
    ours = loss_grid(reader, TOKENS, positions, contexts)
    np.testing.assert_allclose(ours, directly(reader, positions, contexts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mem_len", [0, 8])
@pytest.mark.parametrize("encoding", ["absolute", "al_rfou"])
def test_absolute_positions_are_scored_directly(encoding: str, mem_len: int) -> None:
    model, contexts = attention(encoding, mem_len=mem_len), [2, 6, 10]
    reader = window_reader(model, TRAINED)
    assert not reader.one_pass
    positions, _ = position_blocks(len(TOKENS), 10, contexts)
    ours = loss_grid(reader, TOKENS, positions, contexts)
    np.testing.assert_array_equal(ours, directly(reader, positions, contexts))
    assert (ours[1] == ours[2]).all() == (mem_len == 0)
    shorter = WindowReader(reader.model, one_pass=True)
    assert abs(loss_grid(shorter, TOKENS, positions, [2, 6])[0] - ours[0]).max() > 1e-6  # it would be wrong


def test_a_limit_off_the_grid_is_read_with_exactly_so_many_tokens() -> None:
    model = attention("relative", mem_len=0)
    positions, _ = position_blocks(len(TOKENS), 35, [4, 8, 12, 16])
    ours = loss_grid(WindowReader(model, limit=10, one_pass=True), TOKENS, positions, [4, 8, 12, 16])
    direct = directly(WindowReader(model), positions, [4, 8, 10, 10])
    np.testing.assert_allclose(ours, direct, rtol=0, atol=1e-12)


def on_ranks(world_size: int, measure: Callable[[], Result]) -> list[Result]:
    """Return the result of `measure` on every rank, in their order: ranks are threads of this process."""
    own, barrier, parts = local(), Barrier(world_size), [None] * world_size

    def all_gather(part: Any) -> list[Any]:
        parts[own.rank] = part
        barrier.wait(timeout=60)
        gathered = list(parts)
        barrier.wait(timeout=60)
        return gathered

    def on_rank(rank: int) -> Result:
        own.rank = rank
        return measure()

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("txl_lightning.measure") and hasattr(module, "all_gather"):
                patch.setattr(module, "all_gather", all_gather)
                patch.setattr(module, "rank_and_world_size", lambda: (own.rank, world_size))
        with ThreadPoolExecutor(world_size) as threads:
            return list(threads.map(on_rank, range(world_size)))


def test_ranks_measure_what_one_does() -> None:
    reader = window_reader(attention("relative"))
    positions, _ = position_blocks(len(TOKENS), 35, GRIDS["finer"])
    alone = loss_grid(reader, TOKENS, positions, GRIDS["finer"])
    for of_rank in on_ranks(3, lambda: loss_grid(reader, TOKENS, positions, GRIDS["finer"])):
        np.testing.assert_allclose(of_rank, alone, rtol=0, atol=1e-12)
