"""Cached inference computes what the hidden-state memory does, and refuses what it cannot compute."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import (
    CACHEABLE,
    ENCODINGS,
    STATEFUL,
    SUBSETS,
    assert_close,
    hidden_states,
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning import TransformerXL
from txl_lightning.model.inference.cached import CachedTransformerXL

ARMS = {**ENCODINGS, "relative, untied u and v": {"untie_biases": True}}


def model_of(encoding: str, **options: Any) -> TransformerXL:
    """A tiny model of an entry of ARMS; one that rotates has no clamp."""
    if encoding == "rope":
        options["clamp_len"] = -1
    return tiny_model(**{**ARMS[encoding], **options})


@torch.no_grad()
def outputs(model: Any, stream: Tensor, segments: list[int]) -> Tensor:
    """Hidden states of all calls, concatenated, and log P(token 0) as a last column."""
    hidden = hidden_states(model, stream, segments)
    log_p = model.log_probabilities(hidden)[..., :1].to(hidden)
    return torch.cat([hidden, log_p], dim=-1)


def assert_same(model: TransformerXL, stream: Tensor, segments: list[int]) -> None:
    cached = outputs(CachedTransformerXL(model), stream, segments)
    assert_close(cached, outputs(model, stream, segments))


OPTIONS = {
    "terms": st.sampled_from(["abcd", "abcd", *SUBSETS]),
    "mem_len": st.integers(0, 12),
    "ext_len": st.sampled_from([0, 0, 1, 3]),
    "clamp_len": st.sampled_from([-1, 0, 1, 4]),
    "same_length": st.booleans(),
    "pre_norm": st.booleans(),
    "memory_start": st.sampled_from(["empty", "zeros"]),
}
SEGMENTS = st.lists(
    st.integers(1, 9) | st.just(1),
    min_size=1,
    max_size=14,
)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(ARMS)),
    st.fixed_dictionaries(OPTIONS),
    SEGMENTS,
    st.integers(1, 3),
)
def test_with_any_options_and_segments(encoding, options, segments, n_streams):
    model = model_of(encoding, **options)
    assert_same(model, random_stream(n_streams, sum(segments)), segments)


@pytest.mark.parametrize(
    ("encoding", "T"),
    product_of(["relative", "rope", "alibi"], [1, 3]),
)
@torch.no_grad()
def test_the_window_slides_many_times_over_one_buffer(encoding, T):
    model = tiny_model(
        **ENCODINGS[encoding],
        mem_len=5,
        same_length=True,
    )
    stream = random_stream(2, 118)
    expected, _ = score_segments(model, stream, [117])  # same_length: segments do not matter
    cached = CachedTransformerXL(model)
    memory = None
    losses = []
    buffers = []
    for first in range(0, 117, T):
        nll, memory = score_segments(
            cached,
            stream[:, first : first + T + 1],
            T,
            memory,
        )
        losses.append(nll)
        buffers.append(memory.buffer_NPXCE.data_ptr())
    assert_close(torch.cat(losses, dim=1), expected)
    assert memory.filled == 5
    assert len(set(buffers[len(buffers) // 5 :])) == 1, "a full memory allocates nothing"


@torch.no_grad()
def test_a_memory_can_be_given_once_and_copied_before():
    cached = CachedTransformerXL(tiny_model())
    stream = random_stream(2, 12)
    _, memory = cached(stream[:, :6])
    twin = memory.copy()
    first, _ = cached(
        stream[:, 6:],
        memory,
    )
    for use in (lambda: cached(stream[:, 6:], memory), memory.copy):
        with pytest.raises(ValueError, match="this memory is spent"):
            use()
    with pytest.raises(ValueError, match="memory of 2 streams given with tokens for 1 streams"):
        cached(stream[:1, 6:], twin)
    with pytest.raises(ValueError, match="made by another CachedTransformerXL"):
        cached.with_lengths()(stream[:, 6:], twin)
    second, _ = cached(
        stream[:, 6:],
        twin,
    )
    assert torch.equal(first, second)


def halve(model: TransformerXL) -> None:
    model.load_state_dict({name: value / 2 for name, value in model.state_dict().items()})


def replace_one(model: TransformerXL) -> None:
    """Seen in torch's private `_parameters`."""
    attention = model.layers[1].attention
    attention.position.weight = torch.nn.Parameter(torch.ones(6, 8, dtype=torch.float64))


@pytest.mark.parametrize("change", [halve, replace_one, TransformerXL.float])
@torch.no_grad()
def test_changed_weights_are_refused_and_a_new_object_computes_with_them(change):
    model = tiny_model()
    stream = random_stream(2, 12)
    cached = CachedTransformerXL(model)
    _, memory = cached(stream[:, :6])
    change(model)
    for use in (lambda: cached(stream[:, 6:], memory), lambda: cached.start_memory(2)):
        with pytest.raises(RuntimeError, match="changed after cached inference was set up; make"):
            use()
    expected = outputs(model, stream, [6, 6])
    tolerance = 1e-5 if change is TransformerXL.float else 1e-9
    assert_close(
        outputs(cached.with_lengths(), stream, [6, 6]),
        expected,
        tolerance,
    )


def test_torch_counts_changes_in_place_except_those_of_a_fused_optimizer():
    """Fails when torch drops `_version`, or counts fused steps: then say so in `weights_of`."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    before = weight._version
    torch.optim.Adam([weight], fused=True).step()
    assert weight._version == before
    with torch.no_grad():
        weight.mul_(2)
    assert weight._version > before


def test_gradients_and_dropout_are_refused():
    model = tiny_model(dropout=0.1)
    stream = random_stream(2, 4)
    cached = CachedTransformerXL(model)
    with pytest.raises(RuntimeError, match="no gradients"):
        cached(stream)
    with torch.no_grad(), pytest.raises(RuntimeError, match="no dropout; call eval"):
        cached(stream)


def test_in_inference_mode():
    with torch.inference_mode():
        assert_same(
            tiny_model(),
            random_stream(2, 12),
            [3] * 4,
        )


@pytest.mark.parametrize("encoding", ["relative", "shaw", "rope"])
@torch.no_grad()
def test_keys_and_values_have_the_type_that_autocast_computes_in(encoding):
    model = tiny_model(**ENCODINGS[encoding]).float()
    stream = random_stream(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cached = CachedTransformerXL(model)
        expected = outputs(model, stream, [3] * 4)
        found = outputs(cached, stream, [3] * 4)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)
        _, memory = cached(stream)
        assert memory.buffer_NPXCE.dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"torch\.bfloat16 to None"):
        cached(stream, memory)


@torch.no_grad()
@pytest.mark.parametrize(
    ("arm", "n_targets"),
    product_of(CACHEABLE, [1, 3, 8]),
)
def test_the_last_layer_needs_queries_of_the_scored_tokens_only(arm, n_targets):
    model = tiny_model(**STATEFUL[arm])
    stream = random_stream(2, 17)
    first = stream[:, :9]
    second = stream[:, 9:]
    expected = hidden_states(model, stream, [9, 8])[:, 9:]
    for scorer in (model, CachedTransformerXL(model)):
        hidden, _ = scorer(
            second,
            scorer(first)[1],
            n_last=n_targets,
        )
        assert_close(
            hidden,
            expected[:, 8 - n_targets :],
            1e-10,
        )
    for places in ([0, 3, 7], [5]):
        hidden, _ = model(
            second,
            model(first)[1],
            places_Q=torch.tensor(places),
        )
        assert_close(hidden, expected[:, places], 1e-10)
