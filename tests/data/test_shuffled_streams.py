"""Shuffled streams: every sentence whole, every target right, the same numbers on any number of ranks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.streams import ShuffledStreams
from txl_lightning.errors import OptionError

SENTENCE = 0


def sentences(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """<S> and then words that occur nowhere else: sentence 1 of 2 words is 0 100 101."""
    tokens = [token for i, n in enumerate(lengths) for token in [SENTENCE, *range(100 * i + 100, 100 * i + 100 + n)]]
    return np.array(tokens, dtype=np.int32), np.cumsum([0, *(n + 1 for n in lengths)])[:-1]


drawn = st.tuples(st.integers(1, 4), st.integers(1, 7), st.lists(st.integers(1, 9), min_size=60, max_size=90))


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


@given(drawn, st.integers(0, 5))
def test_extended_context_repeats_the_tokens_before(sizes: tuple[int, int, list[int]], ext_len: int) -> None:
    batch_size, segment_len, lengths = sizes
    streams = ShuffledStreams(*sentences(lengths), batch_size, segment_len, ext_len)
    past = torch.empty(batch_size, 0, dtype=torch.int64)
    for segment in streams:
        n = segment.targets.shape[1]
        extended = segment.tokens[:, :-n]
        assert extended.shape[1] == min(ext_len, past.shape[1])
        assert torch.equal(extended, past[:, past.shape[1] - extended.shape[1] :])
        past = torch.cat([past, segment.tokens[:, -n:]], dim=1)


@given(st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 7), st.booleans())
def test_the_union_over_ranks_does_not_depend_on_their_number(
    per_rank: int, world_size: int, segment_len: int, shuffle: bool
) -> None:
    data = sentences([1 + i * 7 % 9 for i in range(120)])
    sizes = (per_rank * world_size, segment_len, 2)
    whole = ShuffledStreams(*data, *sizes, shuffle=shuffle)
    parts = [ShuffledStreams(*data, *sizes, rank, world_size, shuffle=shuffle) for rank in range(world_size)]
    assert [part.first_column for part in parts] == [rank * per_rank for rank in range(world_size)]
    for _ in range(2):
        for segment, *pieces in zip(whole, *parts, strict=True):
            assert torch.equal(segment.tokens, torch.cat([piece.tokens for piece in pieces]))
            assert torch.equal(segment.targets, torch.cat([piece.targets for piece in pieces]))


def epoch(streams: ShuffledStreams) -> torch.Tensor:
    return torch.cat([segment.targets for segment in streams], dim=1)


def test_every_epoch_has_an_order_of_its_own_that_the_seed_decides() -> None:
    data = sentences([1 + i * 7 % 9 for i in range(120)])
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
    lengths = [1 + i * 7 % 9 for i in range(120)]
    tokens, starts = sentences(lengths)
    streams = ShuffledStreams(tokens, starts, 3, 4, shuffle=False)
    first = epoch(streams)
    assert torch.equal(epoch(streams), first)
    assert first[0].tolist() == tokens[1 : 1 + first.shape[1]].tolist()
    assert streams.n_targets > len(tokens) - 3 * (max(lengths) + 1)
    alone = ShuffledStreams(tokens, starts, 1, 4, shuffle=False)
    assert epoch(alone)[0].tolist() == [*tokens[1:].tolist(), SENTENCE], "one stream reads everything"


def test_a_stopped_iteration_continues_exactly_in_the_same_epoch() -> None:
    def make() -> ShuffledStreams:
        return ShuffledStreams(*sentences([1 + i * 7 % 9 for i in range(120)]), 3, 4, seed=2)

    straight = make()
    expected = [list(straight), list(straight)]
    for stop in (0, 3, len(straight) - 1, len(straight)):
        interrupted = make()
        list(interrupted)
        iterator = iter(interrupted)
        for _ in range(stop):
            next(iterator)
        resumed = make()
        resumed.load_state_dict(interrupted.state_dict())
        rest = list(resumed)
        assert [segment.number for segment in rest] == list(range(stop, len(straight)))
        for ours, theirs in zip(rest, expected[1][stop:], strict=True):
            assert torch.equal(ours.tokens, theirs.tokens)
            assert torch.equal(ours.targets, theirs.targets)
        assert resumed.state_dict() == {"epoch": 2, "position": 0}


def test_an_epoch_is_as_long_as_the_shortest_column_in_any_order() -> None:
    """60 sentences of 5 tokens in a column: 300 tokens, of which 4 may not fill a segment's end; 74 segments of 4."""
    assert len(ShuffledStreams(*sentences([4] * 60), 1, 4)) == 74
    assert len(ShuffledStreams(*sentences([4] * 60), 1, 4, shuffle=False)) == 75
    assert len(ShuffledStreams(*sentences([4] * 60), 2, 73)) == (150 - 4) // 73 == 2


def test_another_epoch_begins_even_if_nobody_asked_for_more_than_the_last_segment() -> None:
    streams = ShuffledStreams(*sentences([3] * 60), 2, 4)
    iterator = iter(streams)
    for _ in range(len(streams)):
        next(iterator)
    assert streams.state_dict() == {"epoch": 0, "position": len(streams)}
    next(iter(streams))
    assert streams.state_dict() == {"epoch": 1, "position": 1}
    with pytest.raises(IndexError):
        streams[len(streams)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0, "segment_len": 4}, "batch_size=0"),
        ({"batch_size": 9, "segment_len": 4}, r"too few of 5 sentences \(25 tokens\) .* segment of 4"),
        ({"batch_size": 1, "segment_len": 4, "world_size": 2}, "at least the 2 processes"),
    ],
)
def test_impossible_sizes_are_named(options: dict[str, int], words: str, shuffle: bool) -> None:
    with pytest.raises(OptionError, match=words):
        ShuffledStreams(*sentences([4] * 5), **options, shuffle=shuffle)


@given(drawn, st.booleans())
def test_every_target_has_its_position_in_the_text(sizes: tuple[int, int, list[int]], shuffle: bool) -> None:
    batch_size, segment_len, lengths = sizes
    tokens, starts = sentences(lengths)
    streams = ShuffledStreams(tokens, starts, batch_size, segment_len, shuffle=shuffle)
    with_end = np.append(tokens, SENTENCE)
    places: list[int] = []
    for index in range(len(streams)):
        positions = streams.positions(index)
        np.testing.assert_array_equal(with_end[positions], streams[index].targets)
        places += positions.ravel().tolist()
    assert len(places) == len(set(places)) == streams.n_targets
    left_out = streams.left_out
    assert len(tokens) + 1 - len(places) == sum(left_out.values())
    if not shuffle:
        column_starts = {int(streams[0].tokens[column, 0]) for column in range(batch_size)}
        assert column_starts == {SENTENCE}
        firsts = [streams.positions(0)[column, 0] - 1 for column in range(batch_size)]
        assert left_out["first_of_streams"] == len(set(firsts) - set(places))
