"""Segment streams: contiguous parts of a corpus, or sentences in a new order every epoch (lm1b)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from txl_lightning.errors import OptionError, require

if TYPE_CHECKING:
    from txl_lightning.config.schemas import DataConfig, EvaluationConfig
    from txl_lightning.data.corpus import Corpus
    from txl_lightning.data.subwords import Positions


class Batch(NamedTuple):
    """T consecutive positions in this rank's B streams: a segment, or all segments in a training step.

    Args:
        tokens: [B, E + T] token numbers; the first E, at most `ext_len`, are extended context.
        targets: [B, T] token numbers, each the token after its position.
        number: index in the epoch, counting segments or steps with several; training begins 0 with an empty memory.
        known_targets: the targets in the CPU's memory, if the batch is on a GPU.
        group: index of the group of streams, where gradients are accumulated over several.
    """

    tokens: Tensor
    targets: Tensor
    number: int
    known_targets: np.ndarray | None = None
    group: int = 0

    def streams(self, first: int, end: int) -> Batch:
        """Return the streams from `first` to `end`."""
        return self._cut(
            slice(first, end),
            slice(None),
            slice(None),
        )

    def split(self, segment_len: int, ext_len: int) -> list[Batch]:
        """Cut a batch with several segments: each has `segment_len` positions, an epoch's last one maybe fewer.

        Args:
            segment_len: T in the parts.
            ext_len: extended context before each part, in tokens (fewer at a stream's start).
        """
        n_targets = self.targets.shape[1]
        n_before = self.tokens.shape[1] - n_targets
        parts = []
        for start in range(0, n_targets, segment_len):
            stop = min(start + segment_len, n_targets)
            first = max(0, n_before + start - ext_len)
            tokens = slice(first, n_before + stop)
            parts.append(
                self._cut(
                    slice(None),
                    tokens,
                    slice(start, stop),
                )
            )
        return parts

    def _cut(self, streams: slice, tokens: slice, targets: slice) -> Batch:
        known_targets = self.known_targets
        if known_targets is not None:
            known_targets = known_targets[streams, targets]
        return self._replace(
            tokens=self.tokens[streams, tokens],
            targets=self.targets[streams, targets],
            known_targets=known_targets,
        )


def part_of_streams(n_streams: int, part: int, n_parts: int) -> tuple[int, int]:
    """Return the first stream and the end for one of n parts, made from neighbouring streams; the first parts may have
    one more.

    22 streams in 8 parts are 3, 3, 3, 3, 3, 3, 2, 2.
    """
    size, more = divmod(n_streams, n_parts)
    first = part * size + min(part, more)
    return first, first + size + (part < more)


@dataclass(eq=False)
class Streams:
    """Text streams as an iterable over `Batch` with a length and a position that can be saved and restored.

    B contiguous streams read a split with n tokens in order: stream b begins at token (start + b (n // B)) mod n and
    has n // B tokens, the rest is trimmed. A stream that reaches the text's end continues at its first token. The last
    segment may be shorter.

    Rank r among W reads part r of the streams (`part_of_streams`): together all ranks read what a single process reads.
    In a stream every token but the first is a target exactly once, in order. A segment depends only on its index and
    the epoch, so an iteration can resume anywhere.

    Args:
        tokens: the whole split, one-dimensional.
        batch_size: B, global.
        segment_len: T.
        ext_len: extended context before every segment, in tokens (fewer at a stream's start).
        rank: r.
        world_size: W.
        seed: draws start from the n positions; None for 0.

    Raises:
        OptionError: B is less than W, or a stream is too short.
    """

    tokens: np.ndarray = field(repr=False)
    batch_size: int
    segment_len: int
    ext_len: int = 0
    rank: int = 0
    world_size: int = 1
    seed: int | None = field(default=None, kw_only=True)
    stream_starts: Positions = field(init=False, repr=False)
    text_len: int = field(init=False)

    def __post_init__(self) -> None:
        allowed = f"must be at least the {self.world_size} processes, a stream for each"
        require(self.batch_size >= self.world_size, "batch_size", self.batch_size, allowed)
        self.epoch = 0
        self.position = 0
        self._start = 0
        self.targets_per_stream = self._measure()  # before an array with as many streams
        self.own = np.arange(
            *part_of_streams(
                self.batch_size,
                self.rank,
                self.world_size,
            )
        )

    def _measure(self) -> int:
        """Set `stream_starts`, [B], and `text_len`, and return the number of targets per stream.

        Raises:
            OptionError: it is too short.
        """
        self.text_len = len(self.tokens)
        stream_len = self.text_len // self.batch_size
        most = f"must be at most {self.text_len // 2}"
        allowed = f"{most}: the text has {self.text_len} tokens, and a stream needs 2"
        require(stream_len >= 2, "batch_size", self.batch_size, allowed)
        start = 0
        if self.seed is not None:
            start = int(np.random.default_rng(self.seed).integers(self.text_len))
        self.stream_starts = start + np.arange(self.batch_size) * stream_len
        return stream_len - 1

    @property
    def n_targets(self) -> int:
        """Number of targets in one epoch in this rank's streams."""
        return len(self.own) * self.targets_per_stream

    @property
    def left_out(self) -> dict[str, int]:
        """Number of tokens in the split that are not a target on any rank, by reason.

        `first_of_streams`: first tokens of streams that are in no other stream; `trimmed`: stream ends, and tokens that
        do not fill all streams evenly.
        """
        n_targets = self.targets_per_stream
        gaps = np.diff(self.stream_starts) != n_targets
        firsts = 1 + int(np.count_nonzero(gaps))
        trimmed = self.text_len - self.batch_size * n_targets - firsts
        return {"first_of_streams": firsts, "trimmed": trimmed}

    def positions(self, index: int) -> Positions:
        """Return where a segment's targets stand in the split, [B, T]."""
        return self._positions(index, 0)[:, 1:]

    def _positions(self, index: int, ext_len: int) -> Positions:
        """Return where a segment's tokens and its last target stand in the split, [B, E + T + 1]."""
        start = index * self.segment_len
        stop = min(start + self.segment_len, self.targets_per_stream)
        places = np.arange(
            max(0, start - ext_len),
            stop + 1,
        )
        return self._in_split(self.stream_starts[self.own][:, None] + places)

    def _in_split(self, places: Positions) -> Positions:
        """Return where places in reading order stand in the split."""
        return places % self.text_len

    def __len__(self) -> int:
        return -(-self.targets_per_stream // self.segment_len)

    def __getitem__(self, index: int) -> Batch:
        # Shuffled sentences end with the <S> after the split's last token: the first token is one too.
        window = self.tokens.take(
            self._positions(index, self.ext_len),
            mode="wrap",
        )
        window_BT = torch.from_numpy(window.astype(np.int64))
        n_left = self.targets_per_stream - index * self.segment_len
        targets_BT = window_BT[
            :,
            -min(self.segment_len, n_left) :,
        ]
        targets_BT = torch.maximum(targets_BT, ~targets_BT)  # targets have no document marks
        return Batch(window_BT[:, :-1], targets_BT, index)

    def __iter__(self) -> Iterator[Batch]:
        """Yield all segments in the epoch, or once those from a restored position on."""
        start = self._start
        self._start = 0
        if start == 0 and self.position == len(self):  # the last iteration was left after its end
            self._end_epoch()
        for index in range(start, len(self)):
            segment = self[index]
            self.position = index + 1
            yield segment
        self._end_epoch()

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the position in it: how many segments were yielded."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the position, from which the next iteration continues; the next epoch follows the last segment."""
        self.epoch = int(state.get("epoch", 0))
        self._order()
        self.position = int(state["position"])
        self._start = self.position % len(self)

    def _end_epoch(self) -> None:
        self.position = 0
        self.epoch += 1
        self._order()

    def _order(self) -> None:
        """Set the epoch's order; contiguous streams have only one."""


@dataclass(eq=False)
class ShuffledStreams(Streams):
    """Streams over a corpus with unordered sentences.

    Every sentence begins with `<S>`, and every stream is filled sentence by sentence: `<S> a b <S> c d <S> …`. A
    sentence's end is predicted as the next one's `<S>`. The original stores `<S>` at both ends of a sentence but never
    predicts the duplicate; here it is stored once.

    The sentences in the epoch's order are cut into B consecutive streams of nearly equal length, each starting with a
    sentence. All streams are read up to the shortest one's length; the remaining tokens, fewer than the longest
    sentence in each stream, are left out. With shuffling the shortest length possible in any order is used, so `len` is
    the same in every epoch. Without (evaluation) it is the actual one, and the last segment may be shorter. The order
    depends on seed and epoch only, not on the segment length or W.

    Args:
        starts: positions in the split where sentences begin, ascending from 0.
        seed: draws a new order in every epoch; None keeps the text's order.

    `Streams` explains the other arguments.

    Raises:
        OptionError: B is less than W, or there are too few sentences for B streams.
    """

    starts: np.ndarray = field(kw_only=True, repr=False)

    def _measure(self) -> int:
        n_tokens = len(self.tokens)
        self.text_len = n_tokens + 1  # with the <S> after the last sentence
        self.lengths = np.diff(self.starts, append=n_tokens)
        self._order()
        n_targets = int(np.diff(self.stream_starts, append=n_tokens).min())
        if self.seed is not None:
            shortest = n_tokens // self.batch_size - int(self.lengths.max(initial=0)) + 1
            n_targets = shortest // self.segment_len * self.segment_len
        sentences = f"{len(self.starts):,} sentences ({n_tokens:,} tokens)"
        segment = f"for one segment of {self.segment_len}"
        allowed = f"gives too few of {sentences} to each stream {segment}"
        require(n_targets >= 1, "batch_size", self.batch_size, allowed)
        return n_targets

    def _order(self) -> None:
        """Compute the epoch's sentence order, the sentences' ends in it, and where streams start."""
        self._sentences = np.arange(len(self.starts))
        if self.seed is not None:
            np.random.default_rng([self.seed, self.epoch]).shuffle(self._sentences)
        self._ends = np.cumsum(self.lengths[self._sentences])
        begins = np.concatenate([[0], self._ends])
        even = np.arange(self.batch_size) * len(self.tokens) // self.batch_size
        self.stream_starts = begins[np.searchsorted(begins, even)]

    def _in_split(self, places: Positions) -> Positions:
        """Return the positions in the split; the `<S>` after the epoch's last sentence is after the last token."""
        found = np.searchsorted(self._ends, places, side="right")
        sentence = np.minimum(found, len(self._ends) - 1)
        before_end = self._ends[sentence] - places
        chosen = self._sentences[sentence]
        inside = self.starts[chosen] + self.lengths[chosen] - before_end
        return np.where(
            before_end <= 0,
            len(self.tokens),
            inside,
        ).astype(np.int64)


def streams_of(
    corpus: Corpus,
    split: str,
    sizes: DataConfig | EvaluationConfig,
    ext_len: int = 0,
    rank: int = 0,
    world_size: int = 1,
    seed: int | None = None,
) -> Streams:
    """Return a split's streams.

    Args:
        corpus: corpus with the split.
        split: train, valid or test.
        sizes: batch size and segment length.
        ext_len: extended context before every segment, in tokens.
        rank: this process's rank.
        world_size: number of processes.
        seed: draws where the streams begin, or the sentences' order; None for the text's order.

    Raises:
        OptionError: the split is too short for an option in `sizes`.
    """
    lengths = (sizes.batch_size, sizes.segment_len, ext_len, rank, world_size)
    try:
        if corpus.sentences:
            return ShuffledStreams(
                corpus.splits[split], *lengths, starts=corpus.documents[split], seed=seed
            )
        return Streams(corpus.splits[split], *lengths, seed=seed)
    except OptionError as error:
        raise error.within("evaluation" if hasattr(sizes, "max_segments") else "data") from error
