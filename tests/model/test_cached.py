"""Cached inference computes what the hidden-state memory does, and refuses what it cannot compute."""

from itertools import pairwise
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
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning import TransformerXL
from txl_lightning.model.inference.cached import CachedTransformerXL, weights_of

EXACT, SINGLE = 1e-10, 1e-6  # of the largest number compared
ARMS: dict[str, dict[str, Any]] = {**ENCODINGS, "relative, untied u and v": {"untie_biases": True}}


def model_of(encoding: str, **options: Any) -> TransformerXL:
    """A tiny model of an entry of ARMS; one that rotates has no clamp."""
    clamp = {"clamp_len": -1} if ARMS[encoding].get("encoding") == "rope" else {}
    return tiny_model(**{**ARMS[encoding], **options, **clamp})


@torch.no_grad()
def outputs(model: Any, stream: Tensor, segments: list[int]) -> Tensor:
    """Hidden states of all calls, concatenated, and log P(token 0) as a last column."""
    results, memory = [], None
    for tokens in stream.split(segments, dim=1):
        hidden, memory = model(tokens, memory)
        results.append(
            torch.cat([hidden, model.log_probabilities(hidden)[..., :1].to(hidden)], dim=-1)
        )
    return torch.cat(results, dim=1)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=tolerance * expected.abs().max().item()
    )


def assert_same(
    model: TransformerXL, stream: Tensor, segments: list[int], tolerance: float
) -> None:
    cached = outputs(CachedTransformerXL(model), stream, segments)
    assert_close(cached, outputs(model, stream, segments), tolerance)


OPTIONS = {
    "terms": st.sampled_from(["abcd", "abcd", *SUBSETS]),
    "mem_len": st.integers(0, 12),
    "ext_len": st.sampled_from([0, 0, 1, 3]),
    "clamp_len": st.sampled_from([-1, 0, 1, 4]),
    "same_length": st.booleans(),
    "pre_norm": st.booleans(),
    "memory_start": st.sampled_from(["empty", "zeros"]),
}
SEGMENTS = st.lists(st.integers(1, 9) | st.just(1), min_size=1, max_size=14)


@settings(max_examples=30)
@given(st.sampled_from(sorted(ARMS)), st.fixed_dictionaries(OPTIONS), SEGMENTS, st.integers(1, 3))
def test_with_any_options_and_segments(encoding, options, segments, n_streams):
    model = model_of(encoding, **options)
    assert_same(model, random_stream(n_streams, sum(segments)), segments, EXACT)


@pytest.mark.parametrize("T", [1, 3])
def test_the_window_slides_many_times_over_one_buffer(T):
    model = tiny_model(mem_len=5, same_length=True)
    cached, stream = CachedTransformerXL(model), random_stream(2, 118)
    memory, places, losses = None, [], []
    with torch.no_grad():
        expected, _ = score_segments(model, stream, [117])  # same_length: segments do not matter
        for first in range(0, 117, T):
            nll, memory = cached.score(
                stream[:, first : first + T], stream[:, first + 1 : first + T + 1], memory
            )
            losses.append(nll)
            places.append((memory.begin, memory.buffer_NPXCE.data_ptr()))
    assert_close(torch.cat(losses, dim=1), expected, EXACT)
    begins, buffers = zip(*places[len(places) // 5 :], strict=True)
    assert sum(later < earlier for earlier, later in pairwise(begins)) >= 8
    assert (memory.filled, len(set(buffers))) == (5, 1), "a full memory allocates nothing"


def test_a_memory_can_be_given_once_and_copied_before():
    cached, stream = CachedTransformerXL(tiny_model()), random_stream(2, 12)
    with torch.no_grad():
        _, memory = cached(stream[:, :6])
        twin = memory.copy()
        first, _ = cached(stream[:, 6:], memory)
        for use, words in (
            (lambda: cached(stream[:, 6:], memory), "this memory is spent"),
            (lambda: memory.copy(), "this memory is spent"),
            (
                lambda: cached(stream[:1, 6:], twin),
                "memory of 2 streams given with tokens for 1 streams",
            ),
            (
                lambda: cached.with_lengths()(stream[:, 6:], twin),
                "made by another CachedTransformerXL",
            ),
        ):
            with pytest.raises(ValueError, match=words):
                use()
        second, _ = cached(stream[:, 6:], twin)
    assert torch.equal(first, second)


def load_others(model: TransformerXL) -> None:
    model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


def replace_one(model: TransformerXL) -> None:
    """Seen in torch's private `_parameters`."""
    model.layers[1].attention.position.weight = torch.nn.Parameter(
        torch.randn(6, 8, dtype=torch.float64)
    )


@pytest.mark.parametrize("change", [load_others, replace_one, TransformerXL.float])
def test_changed_weights_are_refused_and_a_new_object_computes_with_them(change):
    model, stream = tiny_model(), random_stream(2, 12)
    cached = CachedTransformerXL(model)
    with torch.no_grad():
        _, memory = cached(stream[:, :6])
    change(model)
    with torch.no_grad():
        for use in (
            lambda: cached(stream[:, 6:], memory),
            lambda: cached(stream),
            lambda: cached.start_memory(2),
        ):
            with pytest.raises(
                RuntimeError, match=r"\w changed after cached inference was set up; make a new"
            ):
                use()
    tolerance = SINGLE if change is TransformerXL.float else EXACT
    assert_same(model, stream, [6, 6], tolerance)
    assert_close(
        outputs(cached.with_lengths(), stream, [6, 6]), outputs(model, stream, [6, 6]), tolerance
    )


def test_torch_counts_changes_in_place_except_those_of_a_fused_optimizer():
    """Fails when torch drops `_version`, or counts fused steps: then say so in `weights_of`."""
    layer, seen = torch.nn.Linear(2, 3), []
    for change in (
        lambda p: None,
        lambda p: p.mul_(2),
        lambda p: torch.optim.Adam([p], fused=True).step(),
    ):
        layer.weight.grad = torch.ones(3, 2)
        with torch.no_grad():
            change(layer.weight)
        seen.append(weights_of([layer._parameters], "cpu")[1])
    assert seen[0] != seen[1] == seen[2]


def test_gradients_and_dropout_are_refused():
    model, stream = tiny_model(dropout=0.1), random_stream(2, 4)
    cached = CachedTransformerXL(model)
    with pytest.raises(RuntimeError, match="no gradients"):
        cached(stream)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="no dropout; call eval"):
            cached(stream)
        model.eval()
        cached(stream)


def test_in_inference_mode():
    model, stream = tiny_model(), random_stream(2, 12)
    with torch.inference_mode():
        for made in (model, tiny_model()):
            assert_same(made, stream, [3] * 4, EXACT)


@pytest.mark.parametrize(
    "options", [{"terms": "acd"}, ENCODINGS["shaw"], ENCODINGS["rope"]], ids=str
)
def test_keys_and_values_have_the_type_that_autocast_computes_in(options):
    model, stream = tiny_model(**options).float(), random_stream(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        cached, expected = CachedTransformerXL(model), outputs(model, stream, [3] * 4)
        torch.testing.assert_close(outputs(cached, stream, [3] * 4), expected, rtol=0.05, atol=0.1)
        _, memory = cached(stream)
        assert memory.buffer_NPXCE.dtype == torch.bfloat16
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"torch\.bfloat16 to None"):
        cached(stream, memory)


@torch.no_grad()
@pytest.mark.parametrize(("arm", "n_targets"), product_of(CACHEABLE, [1, 3, 8]))
def test_the_last_layer_needs_queries_of_the_scored_tokens_only(arm, n_targets):
    model, stream = tiny_model(**STATEFUL[arm]), random_stream(2, 17)
    targets = random_stream(2, 8)
    for other in (model, CachedTransformerXL(model)):
        hidden, memory = other(stream[:, :9])
        hidden, memory = other(stream[:, 9:], memory)
        expected = model.softmax(hidden, targets, model.embedding)[:, 8 - n_targets :]
        _, again = other.score(stream[:, :9], targets[:, :1])
        nll, after = other.score(stream[:, 9:], targets[:, 8 - n_targets :], again)
        torch.testing.assert_close(nll, expected, rtol=0, atol=1e-12)
        if isinstance(other, TransformerXL):
            assert torch.equal(after.states, memory.states)
            for places in (
                torch.tensor([0, 3, 7]),
                torch.tensor([5]),
            ):  # several places, and a single one
                some, same_memory = other(stream[:, 9:], again, places_Q=places)
                torch.testing.assert_close(some, hidden[:, places], rtol=0, atol=1e-12)
                assert torch.equal(same_memory.states, memory.states)
        longer = [other.score(stream[:, :3], targets[:, :3], kept)[0] for kept in (memory, after)]
        torch.testing.assert_close(longer[0], longer[1], rtol=0, atol=1e-12)
