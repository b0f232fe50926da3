"""Content of a memory, how far back it lets a segment see, and that it is a value."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import (
    assert_close,
    hidden_states,
    random_stream,
    score_segments,
    through_a_file,
    tiny_model,
)
from txl_lightning import Memory
from txl_lightning.model.baselines import RecurrentState
from txl_lightning.variants.compressive import CompressiveMemory
from txl_lightning.variants.memory_tokens import TokenMemory

cuts = st.lists(
    st.integers(1, 6),
    min_size=2,
    max_size=5,
)  # lengths of segments
architectures = st.fixed_dictionaries({"pre_norm": st.booleans(), "untie_biases": st.booleans()})
clamps = st.sampled_from([-1, 0, 1, 3])


def scored(model: Any, segments: list[int], static: bool = False) -> tuple[Tensor, Memory]:
    """Losses of two streams that are cut into these segments, and the last memory."""
    stream = random_stream(2, sum(segments) + 1)
    return score_segments(
        model,
        stream,
        segments,
        model.start_memory(2, static),
    )


@settings(max_examples=40)
@given(
    architectures,
    clamps,
    cuts,
    st.none() | st.integers(1, 20),
)
def test_with_enough_memory_or_same_length_segments_do_not_matter(
    architecture, clamp_len, segments, mem_len
):
    lengths = {"mem_len": mem_len, "same_length": True}
    if mem_len is None:
        lengths = {"mem_len": sum(segments)}
    model = tiny_model(clamp_len=clamp_len, **lengths, **architecture)
    whole, whole_memory = scored(model, [sum(segments)])
    cut, cut_memory = scored(model, segments)
    assert_close(cut, whole)
    if mem_len is None:
        assert_close(cut_memory.states, whole_memory.states)


@settings(max_examples=20)
@given(
    architectures,
    st.booleans(),
    cuts,
    st.integers(0, 12),
)
def test_a_static_memory_computes_what_a_growing_one_does(
    architecture, same_length, segments, mem_len
):
    model = tiny_model(mem_len=mem_len, same_length=same_length, **architecture)
    growing_nll, growing = scored(model, segments)
    static_nll, static = scored(model, segments, static=True)
    assert_close(static_nll, growing_nll)
    assert static.length == model.config.memory_slots
    assert static.filled == growing.filled
    assert_close(
        static.states[:, :, static.length - growing.length :],
        growing.states,
    )


@pytest.mark.parametrize("n_layer", [1, 4, 6])
@torch.no_grad()
def test_a_segment_sees_itself_and_as_many_segments_as_there_are_layers(n_layer):
    L = 3
    model = tiny_model(n_layer=n_layer, mem_len=L)
    stream = random_stream(1, L * (n_layer + 2))
    farthest = L * (n_layer + 1) + 1  # from the stream's end to the first token without effect
    streams = stream.repeat(1 + farthest, 1)
    for distance in range(L + 1, farthest + 1):
        streams[distance, -distance] = (stream[0, -distance] + 1) % model.config.vocab_size
    hidden = hidden_states(model, streams, L)[:, -L:]
    change = (hidden - hidden[:1]).abs().amax(-1)  # of every output of the last segment
    assert (change[L + 1 : farthest] > 1e-9).all()
    assert change[farthest].max() < 1e-12, "rows of one batch may round differently"


def test_with_lengths_shares_the_weights_and_leaves_the_model_alone():
    lengths = {
        "mem_len": 7,
        "same_length": True,
        "clamp_len": 3,
        "memory_start": "zeros",
    }
    model = tiny_model()
    config = model.config
    view = model.with_lengths(**lengths)
    other = tiny_model(**lengths)
    assert model.config is config
    assert view.config == other.config
    for ours, theirs in zip(view.parameters(), model.parameters(), strict=True):
        assert ours is theirs
    assert torch.equal(scored(view, [4, 5])[0], scored(other, [4, 5])[0])


HIDDEN = torch.randn(2, 6, 3, 4)
STATES = {
    "memory": Memory(HIDDEN, filled=2, first_column=10),
    "documents": Memory(
        HIDDEN,
        filled=3,
        in_document_B=torch.arange(6),
        first_column=10,
    ),
    "memory tokens": TokenMemory(
        HIDDEN, filled=2, tokens_nBD=torch.randn(5, 6, 4), first_column=10
    ),
    "compressive": CompressiveMemory(HIDDEN, filled=3, n_compressed=1, first_column=10),
    "recurrent": RecurrentState(
        torch.randn(2, 6, 4),
        torch.randn(2, 6, 4),
        first_column=10,
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_streams_join_in_any_order_and_survive_a_file(name):
    state = STATES[name]
    kind = type(state)
    parts = [
        state.streams(4, 6),
        state.streams(0, 1),
        state.streams(1, 4),
    ]
    assert [part.first_column for part in parts] == [14, 10, 11]
    again = through_a_file(kind.join(parts).to("cpu"))
    assert_close(again.state_dict(), state.state_dict(), 0)
    for stop, start in ((2, 3), (3, 2)):  # a gap, and an overlap
        with pytest.raises(ValueError, match="do not join"):
            kind.join([state.streams(0, stop), state.streams(start, 6)])


def test_memories_that_are_filled_differently_do_not_join():
    state = STATES["memory"]
    with pytest.raises(ValueError, match="do not join"):
        Memory.join([state.streams(0, 1), replace(state, filled=3, first_column=11)])
