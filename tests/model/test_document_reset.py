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
    assert_close,
    random_stream,
    score_segments,
    tiny_model,
    unmarked,
)
from txl_lightning.model import CachedTransformerXL

B = 3
T = 4
L = 18

LENGTHS = [
    {"mem_len": 0},
    {"mem_len": 3},
    {"mem_len": 9},
    {"mem_len": 4, "ext_len": 6},
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


def scored(model: Any, stream: Tensor, start: int = 0) -> Tensor:
    """Losses after the tokens from `start` on, in segments that end at multiples of T."""
    targets = unmarked(stream)
    cuts = [
        start,
        *range(start - start % T + T, L - 1, T),
        L - 1,
    ]
    memory = None
    losses = []
    for first, stop in pairwise(cuts):
        tokens = stream[:, max(start, first - model.config.ext_len) : stop]
        nll, memory = model.score(
            tokens,
            targets[:, first + 1 : stop + 1],
            memory,
        )
        losses.append(nll)
    return torch.cat(losses, dim=1)


places = st.lists(
    st.lists(
        st.integers(0, L - 1),
        unique=True,
        max_size=6,
    ),
    min_size=B,
    max_size=B,
)


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
    model = documents_model(**options)
    plain = model.with_lengths(memory_reset="never")
    scorer = model
    if cached:
        scorer = CachedTransformerXL(model)
    stream = random_stream(B, L)
    with torch.no_grad():
        together = scored(scorer, marked(stream, starts))
        for row in range(B):
            edges = sorted({0, *starts[row], L - 1})
            for first, stop in pairwise(edges):
                # Later text is left in place: absolute positions count from the end of a segment.
                alone = scored(
                    plain,
                    stream[row : row + 1],
                    first,
                )
                assert_close(
                    together[row, first:stop],
                    alone[0, : stop - first],
                )


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16],
    ids=str,
)
@torch.no_grad()
def test_whole_blocks_of_hidden_keys_do_not_change_a_bit(dtype):
    """Fused attention reads keys in blocks of some hundreds."""
    model = documents_model(n_layer=1, mem_len=1500).float()
    losses = []
    for change in (0, 1):
        stream = random_stream(1, 1601)
        stream[:, :1300] = (stream[:, :1300] + change) % model.config.vocab_size
        with torch.autocast(
            "cpu",
            torch.bfloat16,
            enabled=dtype == torch.bfloat16,
        ):
            nll, _ = score_segments(
                model,
                marked(stream, [[1300]]),
                [1280, 320],
            )
        losses.append(nll)
    assert torch.equal(losses[0][:, 1300:], losses[1][:, 1300:])
    assert not torch.equal(losses[0], losses[1])
