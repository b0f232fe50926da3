"""With `memory_reset=document` no token sees anything before its document, in any stream, segment or memory."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import (
    ENCODINGS,
    EXACT,
    random_stream,
    score_segments,
    tiny_model,
    unmarked,
)
from txl_lightning.model import CachedTransformerXL
from txl_lightning.model.inference.sliding_window import SlidingWindow

B, T, L = 3, 4, 18

LENGTHS: list[dict[str, Any]] = [
    {"mem_len": 0},
    {"mem_len": 3},
    {"mem_len": 9},
    {"mem_len": 4, "ext_len": 6},
]
LENGTHS += [
    {"mem_len": 5, "same_length": True, "pre_norm": True},
    {"mem_len": 5, "ext_len": 2, "clamp_len": 3},
]


documents_model = partial(tiny_model, memory_reset="document")


def marked(stream: Tensor, starts: list[list[int]]) -> Tensor:
    """Mark the tokens at these places of each stream as first tokens of documents."""
    stream = stream.clone()
    for row, places in zip(stream, starts, strict=True):
        row[places] = ~row[places]
    return stream


def scored(model: Any, stream: Tensor, start: int = 0, memory: Any = None) -> tuple[Tensor, Any]:
    """Losses after the tokens from `start` on, in segments that end at multiples of T, and the last memory."""
    cuts, losses = [start, *(cut for cut in range(T, L, T) if cut > start), L - 1], []
    for first, stop in pairwise(cuts):
        tokens = stream[:, max(start, first - model.config.ext_len) : stop]
        nll, memory = model.score(tokens, unmarked(stream)[:, first + 1 : stop + 1], memory)
        losses.append(nll)
    return torch.cat(losses, dim=1), memory


def documents_of(starts: list[int]) -> list[tuple[int, int]]:
    """First token of each document, and the place after its last query."""
    return [(a, b) for a, b in pairwise([*sorted({0, *starts}), L - 1]) if a < b]


places = st.lists(st.lists(st.integers(0, L - 1), unique=True, max_size=6), min_size=B, max_size=B)


@settings(max_examples=12)
@given(
    starts=places,
    encoding=st.sampled_from(list(ENCODINGS)),
    lengths=st.sampled_from(LENGTHS),
    cached=st.booleans(),
)
def test_a_document_scores_as_it_does_alone_in_a_stream(starts, encoding, lengths, cached):
    options = {**ENCODINGS[encoding], **lengths}
    if encoding == "rope":
        options.pop("clamp_len", None)  # rotations have no clamped distance
    model, stream = documents_model(**options), random_stream(B, L)
    plain = model.with_lengths(memory_reset="never")
    with torch.no_grad():
        together, _ = scored(
            CachedTransformerXL(model) if cached else model, marked(stream, starts)
        )
        for row in range(B):
            for first, stop in documents_of(starts[row]):
                # Later text is left in place: absolute positions count from the end of a segment.
                alone, _ = scored(plain, stream[row : row + 1], first)
                torch.testing.assert_close(
                    together[row, first:stop], alone[0, : stop - first], **EXACT
                )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_whole_blocks_of_hidden_keys_do_not_change_a_bit(dtype):
    """Fused attention reads keys in blocks of some hundreds."""
    model, stream = documents_model(n_layer=1, mem_len=1500).float(), random_stream(1, 1601)
    other = stream.clone()
    other[:, :1300] = (other[:, :1300] + 1) % model.config.vocab_size
    losses = []
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        for text in (stream, other):
            tokens = marked(text, [[1300]])
            _, memory = model.score(tokens[:, :1280], unmarked(tokens)[:, 1:1281])
            losses.append(model.score(tokens[:, 1280:-1], unmarked(tokens)[:, 1281:], memory)[0])
    assert torch.equal(losses[0][:, 20:], losses[1][:, 20:])
    assert not torch.equal(losses[0], losses[1])


def test_a_memory_of_an_unmarked_stream_is_one_document():
    model, stream = tiny_model(mem_len=30), random_stream(B, L)
    _, memory = scored(model, stream)
    assert memory.in_document_B is None
    assert "in_document_B" not in memory.state_dict()
    resetting = model.with_lengths(memory_reset="document")
    torch.testing.assert_close(
        scored(resetting, stream, memory=memory)[0], scored(model, stream, memory=memory)[0]
    )


def test_a_sliding_window_ends_at_the_start_of_its_document():
    model, stream = documents_model(mem_len=0), marked(random_stream(1, L), [[7]])
    with torch.no_grad():
        nll, _ = SlidingWindow(model, 5).score(stream[:, :-1], unmarked(stream)[:, 1:])
        for i in range(L - 1):
            first = max(0, i - 4, 7 if i >= 7 else 0)
            alone, _ = model.score(stream[:, first : i + 1], unmarked(stream)[:, i + 1 : i + 2])
            torch.testing.assert_close(nll[:, i : i + 1], alone, **EXACT)


@pytest.mark.parametrize(
    ("length", "same_length", "equal"), [(16, False, True), (60, True, True), (60, False, False)]
)
def test_the_place_of_a_document_counts_only_if_it_is_longer_than_the_memory(
    length, same_length, equal
):
    """A query without `same_length` sees M + t keys, t its place in the segment."""
    model, losses = documents_model(mem_len=16, same_length=same_length), []
    for before in (3, 40):
        stream = random_stream(1, 101)[:, 40 - before : 41 + length]
        with torch.no_grad():
            losses.append(score_segments(model, marked(stream, [[before]]), 16)[0][:, before:])
    assert torch.allclose(*losses, rtol=0, atol=1e-10) == equal
