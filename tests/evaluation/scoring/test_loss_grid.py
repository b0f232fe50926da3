"""One pass over windows: the losses of the direct way for every model for which it is exact."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from tests.covering import product_of
from tests.evaluation.ranks import on_ranks
from tests.evaluation.scoring.test_windows import ADAPTIVE, TOKENS, TRAINED, attention, reader_of, recurrent
from txl_lightning.distributed.ranks import process_group
from txl_lightning.evaluation.recl.effective_context import relative_effective_context_lengths
from txl_lightning.evaluation.scoring.windows import (
    WindowReader,
    context_losses,
    loss_grid,
    position_blocks,
    window_reader,
)

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


def test_it_does_so_in_single_precision() -> None:
    reader = window_reader(attention("relative").float())
    positions, _ = position_blocks(len(TOKENS), 35, [5, 10, 15, 20])
    ours = loss_grid(reader, TOKENS, positions, [5, 10, 15, 20])
    np.testing.assert_allclose(ours, directly(reader, positions, [5, 10, 15, 20]), rtol=1e-5)


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


def test_positions_without_enough_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"positions must be in 12 … 199"):
        loss_grid(window_reader(recurrent("lstm")), TOKENS, np.array([11, 50]), [4, 8, 12])


class Copying:
    """Distribution of a text whose tokens copy one of the `lag` before them; unseen ones are anything of 1,000.

    P(x_t) = 1 / lag · Σ_{1 <= l <= lag} ([x_t = x_{t-l}] if x_{t-l} is seen, else 1 / 1,000)
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def score(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, state: object = None) -> tuple:
        p_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
        T = tokens_BT.shape[1]
        for unseen in [min(back, T) for back in range(self.lag)]:  # targets before which token `back` is not seen
            p_BT[:, unseen:] += targets_BT[:, unseen:] == tokens_BT[:, : T - unseen]
            p_BT[:, :unseen] += 1 / 1000
        return -(p_BT / self.lag).log(), None

    def text(self, n_tokens: int) -> np.ndarray:
        random = np.random.default_rng(0)
        tokens = random.integers(0, 1000, n_tokens)
        for t in range(self.lag, n_tokens):
            # One token in ten is new, or the text would end as one token.
            if random.random() > 0.1:
                tokens[t] = tokens[t - random.integers(1, self.lag + 1)]
        return tokens


@pytest.mark.parametrize("lag", [20, 24, 30])
def test_a_model_that_copies_up_to_lag_back_has_the_first_context_that_covers_lag(lag: int) -> None:
    contexts, model = list(range(5, 51, 5)), Copying(lag)
    tokens = model.text(20_000)
    positions, blocks = position_blocks(len(tokens), 2000, contexts)
    copied = np.array([tokens[t] in tokens[t - lag : t] for t in positions])
    positions, blocks = positions[copied], blocks[copied]  # the model gives a new token no probability
    losses = {"oracle": loss_grid(window_reader(model), tokens, positions, contexts)}
    assert np.isfinite(losses["oracle"][-1]).all()
    lengths = relative_effective_context_lengths(losses, contexts, [0.5, 1.0], bootstrap=100, blocks=blocks)["oracle"]
    covering = math.ceil(lag / 5) * 5
    for length in lengths.values():
        assert (length.value, length.at_least, length.low, length.high) == (covering, False, covering, covering)


def score_on_one_of_two(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
    positions, _ = position_blocks(len(TOKENS), 35, GRIDS["finer"])
    with process_group():
        losses = loss_grid(window_reader(attention("relative")), TOKENS, positions, GRIDS["finer"])
    np.save(Path(directory) / f"{rank}.npy", losses)
    torch.distributed.destroy_process_group()


def test_ranks_measure_what_one_does() -> None:
    reader = window_reader(attention("relative"))
    positions, _ = position_blocks(len(TOKENS), 35, GRIDS["finer"])
    alone = loss_grid(reader, TOKENS, positions, GRIDS["finer"])
    for of_rank in on_ranks(3, lambda: loss_grid(reader, TOKENS, positions, GRIDS["finer"])):
        np.testing.assert_allclose(of_rank, alone, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    mp.spawn(score_on_one_of_two, args=(str(tmp_path),), nprocs=2)
    positions, _ = position_blocks(len(TOKENS), 35, GRIDS["finer"])
    alone = loss_grid(window_reader(attention("relative")), TOKENS, positions, GRIDS["finer"])
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npy"), alone, rtol=0, atol=1e-12)
