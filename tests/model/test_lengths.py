"""Streams of a state: selected, repeated and reordered, and of unequal length within a segment."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import CACHEABLE, STATEFUL, random_stream, tiny_model, unmarked
from txl_lightning import CachedTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model.inference.cached import can_cache

EXACT = {"rtol": 0, "atol": 1e-10}
B, T = 4, 5
LENGTHS = torch.tensor(
    [[5, 2, 0, 1], [0, 5, 3, 5], [4, 1, 5, 0], [1, 1, 1, 1], [2, 5, 4, 3]]
)  # of each segment


def stream_of(model: Any, n_streams: int, length: int) -> Tensor:
    """Tokens, some of them marked as first ones of documents if the model tells documents apart."""
    stream = random_stream(n_streams, length)
    return torch.where(stream == 4, ~stream, stream) if "document" in str(model.config) else stream


@pytest.mark.parametrize("arm", STATEFUL)
def test_selected_streams_continue_as_they_would_in_their_places(arm: str) -> None:
    model = tiny_model(**STATEFUL[arm])
    stream, indices = stream_of(model, B, 3 * T), [2, 0, 0, 3, 2]
    with torch.no_grad():
        for scorer in (model, CachedTransformerXL(model)) if can_cache(model) else (model,):
            _, memory = scorer(stream[:, : 2 * T], scorer(stream[:, :T])[1])
            some = memory.select(torch.tensor(indices))
            hidden, after = scorer(stream[:, 2 * T :], memory)
            selected, after_some = scorer(stream[indices, 2 * T :], some)
            torch.testing.assert_close(selected, hidden[indices], **EXACT)
            again, both = (
                scorer(stream[:, :T], after),
                scorer(stream[indices, :T], after_some.select(range(5))),
            )
            torch.testing.assert_close(both[0], again[0][indices], **EXACT)


def ragged(
    model: Any, stream: Tensor, padding: int, row: int | None = None
) -> tuple[list[Tensor], Any]:
    """Losses of every stream in segments of LENGTHS, all streams together or one of them alone, and the last state."""
    losses: list[list[Tensor]] = [[] for _ in range(B)]
    memory, starts = None, torch.zeros(B, dtype=torch.int64)
    overlap = getattr(model.config, "ext_len", 0)
    for lengths in LENGTHS:
        context = starts.clamp(max=overlap) * (lengths > 0)  # extended context is read again
        tokens, targets = torch.full((2, B, overlap + T), padding)
        for b, (first, n, before) in enumerate(zip(starts, lengths, context, strict=True)):
            tokens[b, : n + before] = stream[b, first - before : first + n]
            targets[b, : n + before] = unmarked(stream)[b, first - before + 1 : first + n + 1]
        whole, alone = lengths + context, slice(None) if row is None else slice(row, row + 1)
        if row is None:
            nll, memory = model.score(tokens, targets, memory, whole)
            assert not nll[torch.arange(nll.shape[1]) >= whole[:, None]].any()
        elif n_alone := int(whole[row]):
            nll, memory = model.score(tokens[alone, :n_alone], targets[alone, :n_alone], memory)
        for b, nll_T in zip(range(B)[alone], nll if int(whole[alone].max()) else [], strict=False):
            losses[b].append(nll_T[: whole[b]])
        starts = starts + lengths
    return [torch.cat(of_row) if of_row else torch.empty(0) for of_row in losses], memory


@pytest.mark.parametrize(("arm", "mode"), product_of(CACHEABLE, ["gradients", "cached"]))
def test_padding_never_enters_the_memory_of_a_stream(arm: str, mode: str) -> None:
    """Losses, gradients and the next segment are those of every stream alone, without padding."""
    model = tiny_model(**STATEFUL[arm])
    scorer = CachedTransformerXL(model) if mode == "cached" and can_cache(model) else model
    stream = stream_of(model, B, int(LENGTHS.sum(dim=0).max()) + T + 1)
    with torch.set_grad_enabled(mode == "gradients"):
        together, memory = ragged(scorer, stream, padding=-100)
        following, _ = scorer.score(stream[:, :T], unmarked(stream)[:, 1 : T + 1], memory)
        gradients = []
        if mode == "gradients":
            torch.cat([*together, following.flatten()]).sum().backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            model.zero_grad()
        for row in range(B):
            alone, own = ragged(model, stream, -100, row)
            torch.testing.assert_close(together[row], alone[row], **EXACT)
            tokens = stream[row : row + 1]
            follows, _ = model.score(tokens[:, :T], unmarked(tokens)[:, 1 : T + 1], own)
            torch.testing.assert_close(following[row], follows[0], **EXACT)
            if mode == "gradients":
                torch.cat([alone[row], follows[0]]).sum().backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=False):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-8)


def test_gradients_through_a_memory_of_unequal_streams_are_those_of_each_alone() -> None:
    """`memory.gradient_segments`, in a loop of one's own; a vector of the padding may be anything."""
    model, inputs = (
        tiny_model(mem_len=6),
        torch.randn(B, T, 8, dtype=torch.float64, requires_grad=True),
    )
    padded = torch.where(torch.arange(T)[:, None] < LENGTHS[0][:, None, None], inputs, torch.nan)
    memory = replace(model.start_memory(B), keeps_gradient=True)
    _, memory = model(inputs_BTD=padded, memory=memory, lengths_B=LENGTHS[0])
    model(inputs_BTD=inputs, memory=memory)[0].square().sum().backward()
    together, inputs.grad = inputs.grad, None
    for row, n in enumerate(LENGTHS[0].tolist()):
        memory = replace(model.start_memory(1), keeps_gradient=True)
        _, memory = (
            model(inputs_BTD=inputs[row : row + 1, :n], memory=memory) if n else (None, memory)
        )
        model(inputs_BTD=inputs[row : row + 1], memory=memory)[0].square().sum().backward()
    torch.testing.assert_close(together, inputs.grad, **EXACT)


@pytest.mark.parametrize("arm", ["memory tokens", "compressive", "lstm"])
def test_lengths_that_cannot_be_are_refused_in_one_line(arm: str) -> None:
    tokens = random_stream(2, T)
    with pytest.raises(
        OptionError,
        match=r"^lengths_B=\[5, 2\]: must be None: this model needs streams of one length",
    ):
        tiny_model(**STATEFUL[arm]).score(tokens, tokens, None, torch.tensor([5, 2]))
    for lengths in ([5, 6], [-1, 5]):
        with pytest.raises(
            ValueError,
            match=rf"^lengths_B={re.escape(str(lengths))}: must be 2 lengths from 0 to 5$",
        ):
            tiny_model().score(tokens, tokens, None, torch.tensor(lengths))
