"""Streams, ordered and shuffled: tokens and targets, division over ranks, positions in the text, resuming, errors."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data.streams import ShuffledStreams, Streams
from txl_lightning.errors import OptionError

SENTENCE = 0
Make = Callable[..., Streams]


def shuffled(lengths: list[int], *sizes: int, seed: int | None = None) -> ShuffledStreams:
    """Streams of <S> and then words that occur nowhere else: sentence 1 of 2 words is 0 100 101."""
    tokens = []
    starts = []
    for i, n in enumerate(lengths):
        starts.append(len(tokens))
        tokens += [
            SENTENCE,
            *range(100 * i + 100, 100 * i + 100 + n),
        ]
    return ShuffledStreams(
        np.array(tokens, np.int32),
        *sizes,
        starts=np.array(starts),
        seed=seed,
    )


VARIED = [1 + i * 7 % 9 for i in range(120)]
few = settings(max_examples=20)
KINDS = {
    "ordered": lambda *sizes: Streams(np.arange(647), *sizes),
    "ordered from elsewhere": lambda *sizes: Streams(np.arange(647), *sizes, seed=3),
    "shuffled": lambda *sizes: shuffled(VARIED, *sizes, seed=2),
    "sentences in order": lambda *sizes: shuffled(VARIED, *sizes),
}
each_kind = pytest.mark.parametrize(
    "make",
    KINDS.values(),
    ids=KINDS,
)
few_streams = st.integers(1, 4)
lengths_of_segments = st.integers(1, 9)


def epoch(streams: Streams) -> torch.Tensor:
    return torch.cat(
        [segment.targets for segment in streams],
        dim=1,
    )


@given(
    few_streams,
    lengths_of_segments,
    st.integers(2, 12),
    st.integers(0, 3),
)
def test_every_token_but_the_first_is_one_target(batch_size, segment_len, stream_len, rest):
    trimmed = min(rest, batch_size - 1)
    n_read = batch_size * stream_len
    streams = Streams(
        np.arange(n_read + trimmed),
        batch_size,
        segment_len,
    )
    segments = list(streams)
    expected = torch.arange(n_read).view(batch_size, stream_len)[:, 1:]
    assert torch.equal(epoch(streams), expected)
    assert [segment.number for segment in segments] == list(range(len(streams)))
    assert all(segment.targets.shape[1] == segment_len for segment in segments[:-1])
    assert streams.left_out == {"first_of_streams": batch_size, "trimmed": trimmed}


@given(few_streams, lengths_of_segments, st.integers(0, 7))
@few
@each_kind
def test_extended_context_is_the_tokens_before(make, batch_size, segment_len, ext_len):
    streams = make(batch_size, segment_len, ext_len)
    past = torch.empty(batch_size, 0, dtype=torch.int64)
    for segment in streams:
        n = segment.targets.shape[1]
        n_extended = min(ext_len, segment.number * segment_len)
        extended, tokens = segment.tokens.tensor_split(
            [n_extended],
            dim=1,
        )
        assert torch.equal(extended, past[:, past.shape[1] - n_extended :])
        assert tokens.shape[1] == n
        assert torch.equal(tokens[:, 1:], segment.targets[:, :-1])
        past = torch.cat([past, tokens], dim=1)
    assert torch.equal(past[:, 1:], epoch(make(batch_size, segment_len))[:, :-1])


@given(few_streams, few_streams, lengths_of_segments)
@few
@each_kind
def test_the_union_over_ranks_is_always_the_same(make, more, world_size, segment_len):
    lengths = (world_size + more, segment_len, 2)
    whole = make(*lengths)
    parts = [make(*lengths, rank, world_size) for rank in range(world_size)]
    assert [part.left_out for part in parts] == [whole.left_out] * world_size
    assert sum(part.n_targets for part in parts) == whole.n_targets
    for _ in range(2):
        for segment, *pieces in zip(whole, *parts, strict=True):
            assert torch.equal(segment.tokens, torch.cat([piece.tokens for piece in pieces]))
            assert torch.equal(segment.targets, torch.cat([piece.targets for piece in pieces]))


@given(few_streams, lengths_of_segments, st.integers(0, 99))
def test_a_seed_draws_where_the_streams_begin_and_they_wrap(batch_size, segment_len, seed):
    n = 647
    stream_len = n // batch_size
    streams, same = (Streams(np.arange(n), batch_size, segment_len, seed=seed) for _ in range(2))
    first = epoch(streams)
    start = int(first[0, 0]) - 1
    places = start + torch.arange(batch_size * stream_len).view(batch_size, stream_len)
    for again in (first, epoch(streams), epoch(same)):  # every epoch begins at the same place
        assert torch.equal(again, places[:, 1:] % n)


def test_every_place_may_be_the_start_of_the_streams():
    starts = set()
    for seed in range(99):
        streams = Streams(np.arange(10), 2, 3, seed=seed)
        starts.add(int(streams.positions(0)[0, 0]))
    assert starts == set(range(10))


@given(few_streams, lengths_of_segments)
@few
@each_kind
def test_every_target_has_its_position_and_the_rest_a_reason(make, batch_size, segment_len):
    streams = make(batch_size, segment_len)
    text = streams.tokens
    if isinstance(streams, ShuffledStreams):
        text = np.append(text, SENTENCE)
    places = []
    for index in range(len(streams)):
        positions = streams.positions(index)
        np.testing.assert_array_equal(
            text[positions],
            streams[index].targets,
        )
        places += positions.ravel().tolist()
    assert len(places) == len(set(places)) == streams.n_targets
    assert len(text) - len(places) == sum(streams.left_out.values())
    if make is not KINDS["shuffled"]:
        firsts = set((streams.positions(0)[:, 0] - 1).tolist())
        assert streams.left_out["first_of_streams"] == len(firsts - set(places))


def shown(streams: Streams) -> list[Any]:
    """Numbers and targets of an epoch."""
    return [(segment.number, segment.targets.tolist()) for segment in streams]


@each_kind
def test_a_stopped_iteration_continues_exactly_if_its_state_is_restored(make):
    """In the same epoch, or after its last segment in the next one."""
    straight = make(3, 4)
    list(straight)
    expected = shown(straight) + shown(straight)
    n = len(straight)
    for stop in (0, 3, n - 1, n):
        interrupted = make(3, 4)
        list(interrupted)
        list(itertools.islice(interrupted, stop))
        resumed = make(3, 4)
        resumed.load_state_dict(interrupted.state_dict())
        continued = shown(resumed)
        if stop < n:
            continued += shown(resumed)
        assert continued == expected[stop:]
        assert len(list(interrupted)) == n, "without its state it begins again"


@given(
    few_streams,
    lengths_of_segments,
    st.lists(
        st.integers(1, 9),
        min_size=60,
        max_size=90,
    ),
    st.none() | st.just(1),
)
def test_a_stream_is_whole_sentences(n, segment_len, lengths, seed):
    streams = shuffled(lengths, n, segment_len, seed=seed)
    seen = []
    for tokens in torch.cat([segment.tokens for segment in streams], dim=1).tolist():
        assert len(tokens) == streams.targets_per_stream
        expected = []
        for token in tokens:
            if token != SENTENCE and token % 100 == 0:  # a sentence's first word
                number = token // 100
                expected += [
                    SENTENCE,
                    *range(token, token + lengths[number - 1]),
                ]
                seen.append(number)
        assert tokens in (expected[: len(tokens)], [*expected, SENTENCE])
    assert len(seen) == len(set(seen)), "no sentence is read twice in an epoch"


def test_every_epoch_has_an_order_of_its_own_that_the_seed_decides():
    streams = shuffled(VARIED, 3, 4, seed=5)
    same = shuffled(VARIED, 3, 4, seed=5)
    first = epoch(streams)
    second = epoch(streams)
    assert first.shape == second.shape, "the length of an epoch does not change"
    assert not torch.equal(first, second)
    assert torch.equal(epoch(same), first)
    assert torch.equal(epoch(same), second)
    assert not torch.equal(epoch(shuffled(VARIED, 3, 4, seed=6)), first)
    # Another segment length reads the same order, as far as both go.
    assert torch.equal(epoch(shuffled(VARIED, 3, 7, seed=5))[:, :20], first[:, :20])


IMPOSSIBLE = [
    ((0, 4), "batch_size=0"),
    (
        (13, 4),
        "=13: must be at most 12: the text has 25 tokens|too few of 5 sentences .25 tokens. .* segment of 4",
    ),
    ((1, 4, 0, 0, 2), "at least the 2 processes"),
]


MAKERS = [
    lambda *sizes: Streams(np.arange(25), *sizes),
    lambda *sizes: ShuffledStreams(np.arange(25), *sizes, starts=np.arange(0, 25, 5)),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("sizes", "words"), IMPOSSIBLE)
def test_impossible_sizes_are_named(make, sizes, words):
    with pytest.raises(OptionError, match=words):
        make(*sizes)
