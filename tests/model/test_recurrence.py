"""Content of a memory, how far back it lets a segment see, and that it is a value."""

import io
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import EXACT, random_stream, score_segments, tiny_model
from txl_lightning import Memory
from txl_lightning.model.baselines import RecurrentState
from txl_lightning.variants.compressive import CompressiveMemory
from txl_lightning.variants.memory_tokens import TokenMemory

cuts = st.lists(st.integers(1, 6), min_size=2, max_size=5)  # lengths of segments
architectures = st.fixed_dictionaries({"pre_norm": st.booleans(), "untie_biases": st.booleans()})
clamps = st.sampled_from([-1, 0, 1, 3])


def stream_of(segments: list[int]) -> Tensor:
    return random_stream(2, sum(segments) + 1)


@settings(max_examples=40)
@given(
    architecture=architectures,
    clamp_len=clamps,
    segments=cuts,
    mem_len=st.none() | st.integers(1, 20),
)
def test_with_enough_memory_or_same_length_segments_do_not_matter(
    architecture, clamp_len, segments, mem_len
):
    enough = mem_len is None
    same_length = mem_len is not None
    mem_len = sum(segments) if mem_len is None else mem_len
    model = tiny_model(
        mem_len=mem_len, clamp_len=clamp_len, same_length=same_length, **architecture
    )
    whole, whole_memory = score_segments(model, stream_of(segments), [sum(segments)])
    cut, cut_memory = score_segments(model, stream_of(segments), segments)
    torch.testing.assert_close(cut, whole, **EXACT)
    if enough:
        torch.testing.assert_close(cut_memory.states, whole_memory.states, **EXACT)


@settings(max_examples=20)
@given(
    architecture=architectures, same_length=st.booleans(), segments=cuts, mem_len=st.integers(0, 12)
)
def test_a_static_memory_computes_what_a_growing_one_does(
    architecture, same_length, segments, mem_len
):
    model = tiny_model(mem_len=mem_len, same_length=same_length, **architecture)
    slots = model.config.memory_slots
    growing_nll, growing = score_segments(model, stream_of(segments), segments)
    static_nll, static = score_segments(
        model, stream_of(segments), segments, model.start_memory(2, static=True)
    )
    torch.testing.assert_close(static_nll, growing_nll, **EXACT)
    assert (static.length, static.filled) == (slots, growing.filled)
    torch.testing.assert_close(
        static.states[:, :, slots - growing.length :], growing.states, **EXACT
    )


@pytest.mark.parametrize(("n_layer", "reach"), [(1, 2), (4, 5), (6, 7)])
def test_a_segment_sees_itself_and_as_many_segments_as_there_are_layers(n_layer, reach):
    L = 3
    model = tiny_model(n_layer=n_layer, mem_len=L)
    stream = random_stream(1, L * (n_layer + 2))
    distances = torch.arange(
        L + 1, reach * L + 2
    )  # from the stream's end to the token that is changed
    streams = stream.repeat(1 + len(distances), 1)
    rows = torch.arange(1, len(streams))
    streams[rows, -distances] = (streams[rows, -distances] + 1) % model.config.vocab_size
    memory = None
    with torch.no_grad():
        for tokens in streams.split(L, dim=1):
            hidden, memory = model(tokens, memory)
    change = (hidden[1:] - hidden[:1]).abs().amax(-1)  # of every output of the last segment
    assert (change[:-1] > 1e-9).all()
    assert change[-1].max() < 1e-12, "rows of one batch may round differently"


def test_with_lengths_shares_the_weights_and_leaves_the_model_alone():
    lengths = {"mem_len": 7, "same_length": True, "clamp_len": 3, "memory_start": "zeros"}
    stream = random_stream(2, 17)
    model = tiny_model()
    made = tiny_model(**lengths)
    config = model.config
    view = model.with_lengths(**lengths)
    assert model.config is config
    assert view.config == made.config
    assert all(
        ours is theirs for ours, theirs in zip(view.parameters(), model.parameters(), strict=True)
    )
    assert torch.equal(score_segments(view, stream, 4)[0], score_segments(made, stream, 4)[0])


HIDDEN = torch.randn(2, 6, 3, 4)
STATES = {
    "memory": Memory(HIDDEN, filled=2, first_column=10),
    "documents": Memory(HIDDEN, filled=3, in_document_B=torch.arange(6), first_column=10),
    "memory tokens": TokenMemory(
        HIDDEN, filled=2, tokens_nBD=torch.randn(5, 6, 4), first_column=10
    ),
    "compressive": CompressiveMemory(HIDDEN, filled=3, n_compressed=1, first_column=10),
    "recurrent": RecurrentState(torch.randn(2, 6, 4), torch.randn(2, 6, 4), first_column=10),
}


@pytest.mark.parametrize("name", STATES)
def test_streams_join_in_any_order_and_survive_a_file(name):
    state = STATES[name]
    file = io.BytesIO()
    parts = [state.streams(4, 6), state.streams(0, 1), state.streams(1, 4)]
    assert [(part.first_column, part.batch_size) for part in parts] == [(14, 2), (10, 1), (11, 3)]
    torch.save(type(state).join(parts).to("cpu").state_dict(), file)
    file.seek(0)
    again = type(state).from_state_dict(torch.load(file, weights_only=True)).state_dict()
    torch.testing.assert_close(again, state.state_dict(), rtol=0, atol=0)
    for bounds in ([(0, 2), (3, 6)], [(0, 3), (2, 6)]):  # a gap, an overlap
        with pytest.raises(ValueError, match="do not join"):
            type(state).join([state.streams(*pair) for pair in bounds])
    if name == "memory":
        with pytest.raises(ValueError, match="do not join"):
            Memory.join([state.streams(0, 1), replace(state, filled=3, first_column=11)])
