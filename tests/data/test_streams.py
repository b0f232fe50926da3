"""Ordered streams: order of tokens and targets, division over ranks, resuming, errors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.streams import OrderedStreams
from txl_lightning.errors import OptionError

sizes = st.tuples(st.integers(1, 6), st.integers(1, 9)).flatmap(  # streams, segment length
    lambda bt: st.tuples(st.just(bt[0]), st.just(bt[1]), st.integers(2 * bt[0], 12 * bt[0] + 5), st.integers(0, 7))
)


@given(sizes)
def test_every_token_of_a_column_but_the_first_is_a_target_once_and_in_order(
    drawn: tuple[int, int, int, int],
) -> None:
    batch_size, segment_len, n_tokens, ext_len = drawn
    streams = OrderedStreams(np.arange(n_tokens, dtype=np.int32), batch_size, segment_len, ext_len)
    column_len = n_tokens // batch_size
    segments = list(streams)

    targets = torch.cat([segment.targets for segment in segments], dim=1)
    expected = torch.arange(column_len * batch_size).view(batch_size, column_len)
    assert torch.equal(targets, expected[:, 1:])
    assert targets.numel() == streams.n_targets
    assert [segment.number for segment in segments] == list(range(len(streams)))
    assert all(segment.targets.shape[1] == segment_len for segment in segments[:-1])


@given(sizes)
def test_tokens_are_one_before_their_targets_after_the_extended_context(drawn: tuple[int, int, int, int]) -> None:
    batch_size, segment_len, n_tokens, ext_len = drawn
    for segment in OrderedStreams(np.arange(n_tokens), batch_size, segment_len, ext_len):
        extended = segment.tokens.shape[1] - segment.targets.shape[1]
        assert extended == min(ext_len, segment.number * segment_len)
        assert torch.equal(segment.tokens[:, extended:] + 1, segment.targets)
        steps = segment.tokens.diff(dim=1)
        assert bool((steps == 1).all())


@given(st.integers(1, 4), st.sampled_from([1, 2, 3, 4]), st.integers(1, 7), st.integers(0, 40))
def test_the_union_over_ranks_does_not_depend_on_their_number(
    per_rank: int, world_size: int, segment_len: int, extra: int
) -> None:
    batch_size = per_rank * world_size
    tokens = np.arange(5 * batch_size + extra)
    whole = OrderedStreams(tokens, batch_size, segment_len)
    parts = [OrderedStreams(tokens, batch_size, segment_len, 0, rank, world_size) for rank in range(world_size)]
    assert [part.first_column for part in parts] == [rank * per_rank for rank in range(world_size)]
    for segment, *pieces in zip(whole, *parts, strict=True):
        assert torch.equal(segment.tokens, torch.cat([piece.tokens for piece in pieces]))
        assert torch.equal(segment.targets, torch.cat([piece.targets for piece in pieces]))


def test_a_stopped_iteration_continues_where_its_state_was_taken() -> None:
    def streams() -> OrderedStreams:
        return OrderedStreams(np.arange(103), 3, 4)

    everything = [segment.number for segment in streams()]
    interrupted = streams()
    iterator = iter(interrupted)
    for _ in range(5):
        next(iterator)
    resumed = streams()
    resumed.load_state_dict(interrupted.state_dict())
    assert [segment.number for segment in resumed] == everything[5:]
    assert [segment.number for segment in resumed] == everything, "the next epoch is whole"


def test_between_two_epochs_a_resumed_iteration_is_empty_and_the_next_is_whole() -> None:
    streams, resumed = (OrderedStreams(np.arange(40), 2, 5) for _ in range(2))
    iterator = iter(streams)
    for _ in range(len(streams)):
        next(iterator)
    resumed.load_state_dict(streams.state_dict())
    assert list(resumed) == []
    assert len(list(resumed)) == len(list(streams)) == len(streams)


def test_an_iteration_that_was_cut_short_leaves_no_trace() -> None:
    streams = OrderedStreams(np.arange(103), 3, 4)
    next(iter(streams))
    assert [segment.number for segment in streams] == list(range(len(streams)))


def test_the_state_at_the_end_of_an_epoch_is_its_start() -> None:
    streams = OrderedStreams(np.arange(40), 2, 5)
    list(streams)
    assert streams.state_dict() == {"position": 0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0, "segment_len": 4}, "batch_size=0"),
        ({"batch_size": 2, "segment_len": 0}, "segment_len=0"),
        ({"batch_size": 6, "segment_len": 4}, "gives 1 of 10 tokens"),
        ({"batch_size": 1, "segment_len": 4, "world_size": 2}, "at least the 2 processes"),
    ],
)
def test_impossible_sizes_are_named(options: dict[str, int], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        OrderedStreams(np.arange(10), **options)


def test_segments_outside_the_epoch_do_not_exist() -> None:
    streams = OrderedStreams(np.arange(40), 2, 5)
    with pytest.raises(IndexError):
        streams[len(streams)]
    with pytest.raises(IndexError):
        streams[-1]


@given(sizes, st.integers(1, 3))
def test_every_target_knows_its_place_and_the_rest_is_left_out_for_a_reason(
    drawn: tuple[int, int, int, int], world_size: int
) -> None:
    batch_size, segment_len, n_tokens, ext_len = drawn
    world_size = min(world_size, batch_size)
    tokens = np.arange(n_tokens, dtype=np.int32)
    n_targets = 0
    for rank in range(world_size):
        streams = OrderedStreams(tokens, batch_size, segment_len, ext_len, rank, world_size)
        n_targets += streams.n_targets
        for index in range(len(streams)):
            np.testing.assert_array_equal(streams.positions(index), streams[index].targets)
    assert streams.left_out == {"first_of_streams": batch_size, "trimmed": n_tokens % batch_size}
    assert n_targets + sum(streams.left_out.values()) == n_tokens
