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
    random_stream,
    tiny_model,
    unmarked,
)
from txl_lightning import CachedTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model.inference.cached import can_cache

B = 4
T = 5
LENGTHS = torch.tensor(
    [[5, 2, 0, 1], [0, 5, 3, 5], [4, 1, 5, 0], [1, 1, 1, 1], [2, 5, 4, 3]]
)  # of each segment


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
        hidden, _ = scorer(stream[:, T:], memory)
        selected, _ = scorer(stream[indices, T:], some)
        assert_close(selected, hidden[indices])


def scored_together(model: Any, stream: Tensor) -> tuple[list[Tensor], Any]:
    """Losses of every stream in segments of LENGTHS, all streams in one batch, and the state."""
    losses = [[] for _ in range(B)]
    memory = None
    starts = torch.zeros(B, dtype=torch.int64)
    for lengths in LENGTHS:
        tokens = torch.full((B, T), -100)
        targets = tokens.clone()
        for b in range(B):
            first = int(starts[b])
            end = int(starts[b] + lengths[b])
            tokens[b, : lengths[b]] = stream[b, first:end]
            targets[b, : lengths[b]] = unmarked(stream)[b, first + 1 : end + 1]
        nll, memory = model.score(tokens, targets, memory, lengths)
        for b in range(B):
            losses[b].append(nll[b, : lengths[b]])
            assert not nll[b, lengths[b] :].any()
        starts = starts + lengths
    return [torch.cat(of_stream) for of_stream in losses], memory


def scored_alone(
    model: Any,
    stream: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Any]:
    """Losses of one stream in segments of these lengths, and the state after them."""
    losses = []
    memory = None
    first = 0
    for length in lengths[lengths > 0].tolist():
        tokens = stream[None, first : first + length]
        targets = unmarked(stream)[None, first + 1 : first + length + 1]
        nll, memory = model.score(tokens, targets, memory)
        losses.append(nll[0])
        first += length
    return torch.cat(losses), memory


RAGGED = [arm for arm in CACHEABLE if "ext_len" not in STATEFUL[arm]]


@pytest.mark.parametrize(("arm", "mode"), product_of(RAGGED, ["gradients", "cached"]))
def test_padding_never_enters_the_memory_of_a_stream(arm, mode):
    """Losses, gradients and the next segment are those of every stream alone, without padding."""
    model = tiny_model(**STATEFUL[arm])
    scorer = model
    if mode == "cached":
        scorer = CachedTransformerXL(model)
    stream = stream_of(
        model,
        B,
        int(LENGTHS.sum(dim=0).max()) + T + 1,
    )
    next_targets = unmarked(stream)[:, 1 : T + 1]
    parameters = list(model.parameters())
    expected = []
    with torch.set_grad_enabled(mode == "gradients"):
        losses, memory = scored_together(scorer, stream)
        following, _ = scorer.score(
            stream[:, :T],
            next_targets,
            memory,
        )
        for b in range(B):
            alone, memory = scored_alone(
                model,
                stream[b],
                LENGTHS[:, b],
            )
            follows, _ = model.score(
                stream[b : b + 1, :T],
                next_targets[b : b + 1],
                memory,
            )
            assert_close(losses[b], alone)
            assert_close(following[b], follows[0])
            expected += [alone, follows[0]]
    if mode == "gradients":
        total = torch.cat([*losses, following.flatten()]).sum()
        ours = torch.autograd.grad(total, parameters, materialize_grads=True)
        theirs = torch.autograd.grad(
            torch.cat(expected).sum(),
            parameters,
            materialize_grads=True,
        )
        assert_close(ours, theirs, 1e-08)


@pytest.mark.parametrize("arm", ["memory tokens", "compressive", "lstm"])
def test_lengths_that_cannot_be_are_refused_in_one_line(arm):
    tokens = random_stream(2, T)
    with pytest.raises(
        OptionError,
        match=r"^lengths_B=\[5, 2\]: must be None: this model needs streams of one length",
    ):
        tiny_model(**STATEFUL[arm]).score(
            tokens,
            tokens,
            None,
            torch.tensor([5, 2]),
        )
    for lengths in ([5, 6], [-1, 5]):
        with pytest.raises(
            ValueError,
            match=rf"^lengths_B={re.escape(str(lengths))}: must be 2 lengths from 0 to 5$",
        ):
            tiny_model().score(
                tokens,
                tokens,
                None,
                torch.tensor(lengths),
            )


def test_the_last_tokens_and_places_are_not_asked_for_together():
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="give either n_last or places_Q"):
        tiny_model()(tokens, n_last=2, places_Q=torch.tensor([3]))
