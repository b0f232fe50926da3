"""Streams, ordered and shuffled: tokens and targets, division over ranks, positions in the text, resuming, errors."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data.streams import OrderedStreams, ShuffledStreams, Streams
from txl_lightning.errors import OptionError

SENTENCE = 0
Make = Callable[..., Streams]


def sentences(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """<S> and then words that occur nowhere else: sentence 1 of 2 words is 0 100 101."""
    tokens = [token for i, n in enumerate(lengths) for token in [SENTENCE, *range(100 * i + 100, 100 * i + 100 + n)]]
    return np.array(tokens, dtype=np.int32), np.cumsum([0, *(n + 1 for n in lengths)])[:-1]


VARIED = sentences([1 + i * 7 % 9 for i in range(120)])
few = settings(max_examples=20)
KINDS: dict[str, Make] = {
    "ordered": lambda *sizes, **more: OrderedStreams(np.arange(647), *sizes, **more),
    "shuffled": lambda *sizes, **more: ShuffledStreams(*VARIED, *sizes, **more, seed=2),
    "sentences in order": lambda *sizes, **more: ShuffledStreams(*VARIED, *sizes, **more, shuffle=False),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
lengths_of_sentences = st.lists(st.integers(1, 9), min_size=60, max_size=90)
drawn = st.tuples(st.integers(1, 4), st.integers(1, 7), lengths_of_sentences)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 9)).flatmap(  # streams, segment length
    lambda bt: st.tuples(st.just(bt[0]), st.just(bt[1]), st.integers(2 * bt[0], 12 * bt[0] + 5))
)


def epoch(streams: Streams) -> torch.Tensor:
    return torch.cat([segment.targets for segment in streams], dim=1)


@given(sizes, st.integers(1, 3))
def test_every_token_of_an_ordered_column_but_the_first_is_a_target_once(
    drawn: tuple[int, int, int], world_size: int
) -> None:
    batch_size, segment_len, n_tokens = drawn
    tokens = np.arange(n_tokens, dtype=np.int32)
    streams = OrderedStreams(tokens, batch_size, segment_len)
    column_len = n_tokens // batch_size
    segments = list(streams)
    expected = torch.arange(column_len * batch_size).view(batch_size, column_len)
    assert torch.equal(torch.cat([segment.targets for segment in segments], dim=1), expected[:, 1:])
    assert [segment.number for segment in segments] == list(range(len(streams)))
    assert all(segment.targets.shape[1] == segment_len for segment in segments[:-1])
    world_size = min(world_size, batch_size)
    ranks = [OrderedStreams(tokens, batch_size, segment_len, 0, rank, world_size) for rank in range(world_size)]
    assert streams.left_out == ranks[0].left_out == {"first_of_streams": batch_size, "trimmed": n_tokens % batch_size}
    assert sum(rank.n_targets for rank in ranks) + sum(streams.left_out.values()) == n_tokens


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 7))
@few
@each_kind
def test_extended_context_repeats_the_tokens_before_and_tokens_are_one_before_their_targets(
    make: Make, batch_size: int, segment_len: int, ext_len: int
) -> None:
    streams = make(batch_size, segment_len, ext_len)
    past = torch.empty(batch_size, 0, dtype=torch.int64)
    for segment in streams:
        n = segment.targets.shape[1]
        extended = segment.tokens[:, :-n]
        assert extended.shape[1] == min(ext_len, segment.number * segment_len)
        assert torch.equal(extended, past[:, past.shape[1] - extended.shape[1] :])
        assert torch.equal(segment.tokens[:, segment.tokens.shape[1] - n + 1 :], segment.targets[:, :-1])
        past = torch.cat([past, segment.tokens[:, -n:]], dim=1)
    assert torch.equal(past[:, 1:], epoch(make(batch_size, segment_len))[:, :-1])


@given(st.integers(1, 4), st.sampled_from([1, 2, 3, 4]), st.integers(1, 7))
@few
@each_kind
def test_the_union_over_ranks_does_not_depend_on_their_number(
    make: Make, per_rank: int, world_size: int, segment_len: int
) -> None:
    lengths = (per_rank * world_size, segment_len, 2)
    whole = make(*lengths)
    parts = [make(*lengths, rank, world_size) for rank in range(world_size)]
    assert [part.first_column for part in parts] == [rank * per_rank for rank in range(world_size)]
    for _ in range(2):
        for segment, *pieces in zip(whole, *parts, strict=True):
            assert torch.equal(segment.tokens, torch.cat([piece.tokens for piece in pieces]))
            assert torch.equal(segment.targets, torch.cat([piece.targets for piece in pieces]))


@given(st.integers(1, 4), st.integers(1, 7))
@few
@each_kind
def test_every_target_has_its_position_in_the_text_and_the_rest_is_left_out_for_a_reason(
    make: Make, batch_size: int, segment_len: int
) -> None:
    streams = make(batch_size, segment_len)
    ordered = isinstance(streams, OrderedStreams)
    text = streams.tokens if ordered else np.append(streams.tokens, SENTENCE)
    places: list[int] = []
    for index in range(len(streams)):
        positions = streams.positions(index)
        np.testing.assert_array_equal(text[positions], streams[index].targets)
        places += positions.ravel().tolist()
    assert len(places) == len(set(places)) == streams.n_targets
    left_out = streams.left_out
    assert len(text) - len(places) == sum(left_out.values())
    if make is not KINDS["shuffled"]:
        firsts = streams.positions(0)[:, 0] - 1
        assert left_out["first_of_streams"] == len(set(firsts.tolist()) - set(places))


@each_kind
def test_a_stopped_iteration_continues_exactly_in_the_same_epoch(make: Make) -> None:
    straight = make(3, 4)
    list(straight)
    expected = list(straight)
    for stop in (0, 3, len(straight) - 1, len(straight)):  # after the last segment nothing is left of the epoch
        interrupted = make(3, 4)
        list(interrupted)
        iterator = iter(interrupted)
        for _ in range(stop):
            next(iterator)
        resumed = make(3, 4)
        resumed.load_state_dict(interrupted.state_dict())
        rest = list(resumed)
        assert [segment.number for segment in rest] == list(range(stop, len(straight)))
        assert all(torch.equal(a.targets, b.targets) for a, b in zip(rest, expected[stop:], strict=True))
        assert resumed.state_dict() == straight.state_dict()
        assert resumed.state_dict()["position"] == 0
        assert len(list(resumed)) == len(straight), "the next epoch is whole"


@each_kind
def test_an_iteration_that_was_cut_short_leaves_no_trace_and_nothing_follows_the_last_segment(make: Make) -> None:
    streams = make(3, 4)
    next(iter(streams))
    assert [segment.number for segment in streams] == list(range(len(streams)))
    for index in (-1, len(streams)):
        with pytest.raises(IndexError):
            streams[index]


def test_another_epoch_begins_even_if_nobody_asked_for_more_than_the_last_segment() -> None:
    streams = ShuffledStreams(*sentences([3] * 60), 2, 4)
    iterator = iter(streams)
    for _ in range(len(streams)):
        next(iterator)
    assert streams.state_dict() == {"epoch": 0, "position": len(streams)}
    next(iter(streams))
    assert streams.state_dict() == {"epoch": 1, "position": 1}


def column(streams: ShuffledStreams, epoch_segments: list, index: int) -> list[int]:
    tokens = torch.cat([segment.tokens[index, -segment.targets.shape[1] :] for segment in epoch_segments])
    return [*tokens.tolist(), int(epoch_segments[-1].targets[index, -1])]


@given(drawn, st.booleans())
def test_a_column_is_whole_sentences_and_every_token_is_followed_by_its_target(
    sizes: tuple[int, int, list[int]], shuffle: bool
) -> None:
    batch_size, segment_len, lengths = sizes
    streams = ShuffledStreams(*sentences(lengths), batch_size, segment_len, shuffle=shuffle)
    segments = list(streams)
    assert len(segments) == len(streams)
    assert sum(segment.targets.numel() for segment in segments) == streams.n_targets
    seen: list[int] = []
    for index in range(batch_size):
        stream = column(streams, segments, index)
        assert stream[0] == SENTENCE, "no column begins inside a sentence"
        targets = torch.cat([segment.targets[index] for segment in segments]).tolist()
        assert targets == stream[1:]
        assert (SENTENCE, SENTENCE) not in itertools.pairwise(stream), "the duplicate <S> is never a target"
        pieces = [list(group) for is_mark, group in itertools.groupby(stream, lambda t: t == SENTENCE) if not is_mark]
        for piece in pieces[:-1]:
            first = piece[0]
            assert first % 100 == 0
            assert piece == list(range(first, first + lengths[first // 100 - 1]))
        seen += [piece[0] for piece in pieces]
    assert len(seen) == len(set(seen)), "no sentence is read twice in an epoch"


def test_every_epoch_has_an_order_of_its_own_that_the_seed_decides() -> None:
    data = VARIED
    streams, same = ShuffledStreams(*data, 3, 4, seed=5), ShuffledStreams(*data, 3, 4, seed=5)
    first, second = epoch(streams), epoch(streams)
    assert first.shape == second.shape, "the length of an epoch does not change"
    assert not torch.equal(first, second)
    assert torch.equal(epoch(same), first)
    assert torch.equal(epoch(same), second)
    assert not torch.equal(epoch(ShuffledStreams(*data, 3, 4, seed=6)), first)
    # Another segment length reads the same order, as far as both go.
    n = min(first.shape[1], 20)
    assert torch.equal(epoch(ShuffledStreams(*data, 3, 7, seed=5))[:, :n], first[:, :n])


def test_evaluation_reads_the_texts_own_order_every_time_and_nearly_all_of_it() -> None:
    tokens, starts = VARIED
    streams = ShuffledStreams(tokens, starts, 3, 4, shuffle=False)
    first = epoch(streams)
    assert torch.equal(epoch(streams), first)
    assert first[0].tolist() == tokens[1 : 1 + first.shape[1]].tolist()
    assert streams.n_targets > len(tokens) - 3 * 10
    alone = ShuffledStreams(tokens, starts, 1, 4, shuffle=False)
    assert epoch(alone)[0].tolist() == [*tokens[1:].tolist(), SENTENCE], "one stream reads everything"


def test_an_epoch_is_as_long_as_the_shortest_column_in_any_order() -> None:
    """60 sentences of 5 tokens in a column: 300 tokens, of which 4 may not fill a segment's end; 74 segments of 4."""
    assert len(ShuffledStreams(*sentences([4] * 60), 1, 4)) == 74
    assert len(ShuffledStreams(*sentences([4] * 60), 1, 4, shuffle=False)) == 75
    assert len(ShuffledStreams(*sentences([4] * 60), 2, 73)) == (150 - 4) // 73 == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0, "segment_len": 4}, "batch_size=0"),
        ({"batch_size": 2, "segment_len": 0}, "segment_len=0"),
        (
            {"batch_size": 13, "segment_len": 4},
            "gives 1 of 25|too few of 5 sentences .25 tokens. .* segment of 4",
        ),
        ({"batch_size": 1, "segment_len": 4, "world_size": 2}, "at least the 2 processes"),
    ],
)
def test_impossible_sizes_are_named(options: dict[str, int], words: str) -> None:
    tokens, starts = sentences([4] * 5)
    with pytest.raises(OptionError, match=words):
        OrderedStreams(tokens, **options)
    for shuffle in (True, False):
        with pytest.raises(OptionError, match=words):
            ShuffledStreams(tokens, starts, **options, shuffle=shuffle)
