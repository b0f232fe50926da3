"""`memory.reset(done_B)`: some streams start from scratch between two segments, and nothing else changes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import (
    CACHEABLE,
    STATEFUL,
    assert_close,
    hidden_states,
    random_stream,
    through_a_file,
    tiny_model,
)
from txl_lightning import CachedTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.variants.compressive import CompressiveTransformerXL
from txl_lightning.variants.memory_tokens import MemoryTokensTransformerXL

B = 3
T = 4
N = 6
DONE = [
    [],
    [1],
    [0, 1],
    [],
    [2],
    [],
]  # streams that start from scratch before each segment

TOKENS = {"model_class": MemoryTokensTransformerXL, "n_tokens": 2, "mem_len": 5}
ARMS = {name: arm for name, arm in STATEFUL.items() if "model_class" not in arm}
ARMS |= {"memory tokens": {**TOKENS, "mem_len": 0}, "memory tokens and states": TOKENS}
ARMS["memory tokens that see states, in their places"] = {
    **TOKENS,
    "tokens_see_states": True,
    "write_tokens": False,
}


def hidden_of(model: Any, stream: Tensor, static: bool, done: list[list[int]]) -> Tensor:
    """Hidden states of all segments; before each, some streams are reset one after the other."""
    hidden = []
    memory = model.start_memory(
        B,
        **({"static": True} if static else {}),
    )
    for tokens, rows in zip(stream.split(T, dim=1), done, strict=True):
        for row in rows:
            memory = memory.reset(torch.arange(B) == row)
        hidden_BTD, memory = model(tokens, memory)
        hidden.append(hidden_BTD)
    return torch.cat(hidden, dim=1)


def alone_in_episodes(model: Any, stream: Tensor, row: int) -> Tensor:
    """Hidden states of one stream, each of whose episodes begins without a memory."""
    starts = [n * T for n, rows in enumerate(DONE) if row in rows]
    episodes = stream[row : row + 1].tensor_split(starts, dim=1)
    return torch.cat([hidden_states(model, episode, T) for episode in episodes], dim=1)[0]


@pytest.mark.parametrize(
    ("arm", "mode"),
    product_of(ARMS, ["model", "static", "cached"]),
)
@torch.no_grad()
def test_an_episode_is_computed_as_it_is_alone_at_the_start_of_a_stream(arm, mode):
    model = tiny_model(**ARMS[arm])
    stream = random_stream(B, N * T)
    scorer = model
    if mode == "cached" and arm in CACHEABLE:
        scorer = CachedTransformerXL(model)
    together = hidden_of(scorer, stream, mode == "static", DONE)
    without = hidden_of(
        scorer,
        stream,
        mode == "static",
        [[]] * N,
    )
    for row, first_reset in enumerate((2, 1, 4)):
        assert_close(together[row], alone_in_episodes(model, stream, row))
        # Until then the resets of other streams change nothing.
        n_equal = first_reset * T
        assert_close(
            without[row, :n_equal],
            together[row, :n_equal],
        )


@pytest.mark.parametrize("arm", ["relative", "zeros", "memory tokens and states", "lstm"])
def test_a_reset_survives_a_file_and_streams_of_which_one_had_none(arm):
    model = tiny_model(**ARMS[arm])
    stream = random_stream(B, 2 * T)
    done = torch.tensor([True, False, False])
    _, memory = model(stream[:, :T])
    expected, _ = model(
        stream[:, T:],
        memory.reset(done),
    )
    joined = type(memory).join([memory.streams(0, 1).reset(done[:1]), memory.streams(1, 3)])
    assert torch.equal(model(stream[:, T:], through_a_file(joined))[0], expected)


def test_a_reset_leaves_the_given_memory_alone():
    memory = tiny_model().start_memory(2)
    assert memory.reset(torch.tensor([True, False])).in_document_B is not None
    assert memory.in_document_B is None


def test_what_cannot_be_reset_is_refused_in_one_line():
    stream = random_stream(B, 2 * T)
    done = torch.tensor([True, False, False])
    model = tiny_model(CompressiveTransformerXL, mem_len=4, compressed_len=2, rate=2)
    _, memory = model(stream[:, :T])
    words = r"^reset=True: is not possible: a compressed state may be of two documents$"
    with pytest.raises(OptionError, match=words):
        model(
            stream[:, T:],
            memory.reset(done),
        )
    with torch.no_grad():
        _, memory = CachedTransformerXL(tiny_model())(stream[:, :T])
    memory.reset(done)
    with pytest.raises(ValueError, match="this memory is spent"):
        memory.reset(done)
    for scorer in (tiny_model(), tiny_model(cell="lstm"), CachedTransformerXL(tiny_model())):
        with pytest.raises(ValueError, match=r"^done_B of shape \(2,\) given for 3 streams$"):
            scorer.start_memory(B).reset(done[:2])
