"""Streams of a state: selected, repeated and reordered, and of unequal length within a segment."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import (
    CACHEABLE,
    STATEFUL,
    assert_close,
    assert_same_gradients,
    random_stream,
    score_segments,
    tiny_model,
    unmarked,
)
from txl_lightning import CachedTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model.inference.cached import can_cache

B = 4
T = 5
LENGTHS = torch.tensor(  # of each segment
    [
        [5, 2, 0, 1],
        [0, 5, 3, 5],
        [4, 1, 5, 0],
        [1, 1, 1, 1],
        [2, 5, 4, 3],
        [5, 5, 5, 5],
    ]
)


def stream_of(model: Any, n_streams: int, length: int) -> Tensor:
    """Tokens, some of them marked as first ones of documents if the model tells documents apart."""
    stream = random_stream(n_streams, length)
    return torch.where(stream == 4, ~stream, stream) if "document" in str(model.config) else stream


@pytest.mark.parametrize("arm", STATEFUL)
@torch.no_grad()
def test_selected_streams_continue_as_they_would_in_their_places(arm):
    model = tiny_model(**STATEFUL[arm])
    scorers = [model]
    if can_cache(model):
        scorers.append(CachedTransformerXL(model))
    stream = stream_of(model, B, 2 * T)
    indices = [2, 0, 0, 3, 2]
    for scorer in scorers:
        _, memory = scorer(stream[:, :T])
        some = memory.select(torch.tensor(indices))
        hidden, _ = scorer(
            stream[:, T:],
            memory,
        )
        selected, _ = scorer(
            stream[indices, T:],
            some,
        )
        assert_close(selected, hidden[indices])


def scored_together(model: Any, stream: Tensor) -> Tensor:
    """Losses of all streams in segments of LENGTHS, in one batch; one stream after the other."""
    losses = [[] for _ in range(B)]
    memory = None
    starts = torch.zeros(B, dtype=torch.int64)
    for lengths in LENGTHS:
        ends = starts + lengths
        tokens = torch.full((B, T), -100)
        targets = tokens.clone()
        for b in range(B):
            tokens[b, : lengths[b]] = stream[b, starts[b] : ends[b]]
            following = unmarked(stream)[b, starts[b] + 1 : ends[b] + 1]
            targets[b, : lengths[b]] = following
        padded = lengths if lengths.min() < T else None
        nll, memory = model.score(tokens, targets, memory, padded)
        for b in range(B):
            losses[b].append(nll[b, : lengths[b]])
            assert not nll[b, lengths[b] :].any()
        starts = ends
    return torch.cat([torch.cat(of_stream) for of_stream in losses])


def scored_alone(model: Any, stream: Tensor) -> Tensor:
    """Losses of each stream without the others, and so without padding."""
    losses = []
    for b in range(B):
        lengths = LENGTHS[:, b]
        end = int(lengths.sum()) + 1
        nll, _ = score_segments(
            model,
            stream[b : b + 1, :end],
            lengths[lengths > 0].tolist(),
        )
        losses.append(nll[0])
    return torch.cat(losses)


RAGGED = [arm for arm in CACHEABLE if "ext_len" not in STATEFUL[arm]]


@pytest.mark.parametrize(
    ("arm", "mode"),
    product_of(RAGGED, ["gradients", "cached"]),
)
def test_padding_never_enters_the_memory_of_a_stream(arm, mode):
    """Every stream has the losses and gradients that it has alone, without padding."""
    model = tiny_model(**STATEFUL[arm])
    stream = stream_of(
        model,
        B,
        int(LENGTHS.sum(dim=0).max()) + 1,
    )
    if mode == "gradients":
        together = scored_together(model, stream)
        parameters = list(model.parameters())
        assert_same_gradients(together, scored_alone(model, stream), parameters, 1e-8)
    else:
        with torch.no_grad():
            together = scored_together(CachedTransformerXL(model), stream)
            assert_close(together, scored_alone(model, stream))


@pytest.mark.parametrize("arm", ["memory tokens", "compressive", "lstm"])
def test_a_model_that_needs_streams_of_one_length_says_so(arm):
    tokens = random_stream(2, T)
    words = r"^lengths_B=\[5, 2\]: must be None: this model needs streams of one length"
    with pytest.raises(OptionError, match=words):
        tiny_model(**STATEFUL[arm]).score(tokens, tokens, None, torch.tensor([5, 2]))


@pytest.mark.parametrize(
    "lengths",
    [[5, 6], [-1, 5]],
)
def test_lengths_that_cannot_be_are_refused_in_one_line(lengths):
    tokens = random_stream(2, T)
    words = re.escape(f"lengths_B={lengths}: must be 2 lengths from 0 to 5")
    with pytest.raises(ValueError, match=f"^{words}$"):
        tiny_model().score(tokens, tokens, None, torch.tensor(lengths))


def test_the_last_tokens_and_places_are_not_asked_for_together():
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="give either n_last or places_Q"):
        tiny_model()(tokens, n_last=2, places_Q=torch.tensor([3]))
