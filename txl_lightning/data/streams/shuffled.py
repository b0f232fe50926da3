"""Shuffled streams: sentences in an order of their own every epoch, dealt to columns without a gap (lm1b)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from txl_lightning.data.streams.ordered import Segment, Streams
from txl_lightning.errors import OptionError


class ShuffledStreams(Streams):
    """The columns of one rank over sentences that have no order among them.

    Every sentence begins with `<S>`, and every column is filled sentence by sentence, so that a column reads
    `<S> a b <S> c d <S> …`. A sentence's end is predicted as the `<S>` of the next one; the second `<S>` that
    an encoding of both ends would have is never there, hence never a target (PAPER's data, 16).

    The sentences in the epoch's order are cut into B consecutive columns where sentences begin, as evenly
    as that goes. All columns are read as far as the shortest one reaches: the last sentences of the others,
    fewer tokens than one sentence each, are left out. Shuffled, the length is the shortest possible one, so
    that `len` is the same in every epoch; unshuffled (evaluation) it is the true one, and the last segment
    may be shorter. The order depends on seed and epoch only, neither on the segment length nor on W.

    Args:
        tokens: the whole split, one-dimensional.
        starts: positions in it where sentences begin, in order, the first one 0.
        batch_size: B, global.
        segment_len: T.
        ext_len: tokens of extended context in front of every segment (fewer at a column's start).
        rank: r.
        world_size: W.
        seed: of the orders.
        shuffle: whether there is another order in every epoch; without, the text's own.

    Raises:
        OptionError: B is less than W, or there are too few sentences for B columns.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        starts: np.ndarray,
        batch_size: int,
        segment_len: int,
        ext_len: int = 0,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 1,
        shuffle: bool = True,
    ) -> None:
        self._check_sizes(batch_size, segment_len, world_size)
        self.tokens, self.starts = tokens, np.asarray(starts)
        self.lengths = np.diff(self.starts, append=len(tokens))
        self.batch_size, self.segment_len, self.ext_len = batch_size, segment_len, ext_len
        self.first_column = rank * batch_size // world_size
        self.n_columns = (rank + 1) * batch_size // world_size - self.first_column
        self.seed, self.shuffle = seed, shuffle
        self.epoch = self.position = self._start = 0
        self._ordered_for: int | None = None
        self._order()
        if shuffle:
            longest = int(self.lengths.max(initial=0))
            segments = (len(tokens) // batch_size - longest + 1) // segment_len
            self._column_len = segments * segment_len
        else:
            self._column_len = int(np.diff(self._column_starts).min())
        if self._column_len < 1:
            raise OptionError(
                "batch_size",
                batch_size,
                f"gives too few of {len(self.starts):,} sentences ({len(tokens):,} tokens) to each stream "
                f"for one segment of {segment_len}",
            )

    @property
    def n_targets(self) -> int:
        """Targets in one epoch of this rank's columns."""
        return self.n_columns * self._column_len

    @property
    def left_out(self) -> dict[str, int]:
        """Of this epoch's order: `<S>` at columns' starts that end no sentence before, and what columns have too much.

        Behind the last sentence stands one `<S>` more than the split has.
        """
        self._order()
        targets, starts = self.batch_size * self._column_len, self._column_starts[: self.batch_size]
        firsts = 1 + int((starts[1:] != starts[:-1] + self._column_len).sum())
        return {"first_of_streams": firsts, "trimmed": len(self.tokens) + 1 - targets - firsts}

    def positions(self, index: int) -> NDArray[np.int64]:
        """Where in the split the targets of a segment stand, [B, T]; the `<S>` behind the last sentence at its end."""
        self._order()
        start = index * self.segment_len
        stop = min(start + self.segment_len, self._column_len)
        columns = self._column_starts[self.first_column : self.first_column + self.n_columns]
        inside, behind = self._in_text(columns[:, None] + np.arange(start + 1, stop + 1))
        return np.where(behind, len(self.tokens), inside).astype(np.int64)

    def __len__(self) -> int:
        return -(-self._column_len // self.segment_len)

    def __getitem__(self, index: int) -> Segment:
        if not 0 <= index < len(self):
            raise IndexError(index)
        self._order()
        start = index * self.segment_len
        stop = min(start + self.segment_len, self._column_len)
        first = max(0, start - self.ext_len)
        columns = self._column_starts[self.first_column : self.first_column + self.n_columns]
        window = torch.from_numpy(self._tokens_at(columns[:, None] + np.arange(first, stop + 1)))
        return Segment(tokens=window[:, :-1], targets=window[:, start - first + 1 :], number=index)

    def state_dict(self) -> dict[str, int]:
        """Epoch, and position of the next segment in it."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration continue where `state_dict` was taken."""
        self.epoch = int(state["epoch"])
        super().load_state_dict(state)

    def _end_epoch(self) -> None:
        super()._end_epoch()
        self.epoch += 1

    def _order(self) -> None:
        """The epoch's order of sentences, where they end in it, and where columns begin."""
        if self._ordered_for == self.epoch or (self._ordered_for is not None and not self.shuffle):
            return
        generator = np.random.default_rng([self.seed, self.epoch])
        self._sentences = np.arange(len(self.starts))
        if self.shuffle:
            generator.shuffle(self._sentences)
        self._ends = np.cumsum(self.lengths[self._sentences])
        even = np.arange(self.batch_size + 1) * len(self.tokens) // self.batch_size
        begins = np.concatenate([[0], self._ends])
        self._column_starts = begins[np.searchsorted(begins, even)]
        self._ordered_for = self.epoch

    def _tokens_at(self, places: np.ndarray) -> np.ndarray:
        """Tokens at places of the epoch's order; after the last sentence comes the `<S>` of none."""
        inside, behind = self._in_text(places)
        return self.tokens[np.where(behind, 0, inside)].astype(np.int64)

    def _in_text(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in the split of places of the epoch's order, and which places are behind the last sentence."""
        sentence = np.minimum(np.searchsorted(self._ends, places, side="right"), len(self._ends) - 1)
        before_end = self._ends[sentence] - places
        chosen = self._sentences[sentence]
        return self.starts[chosen] + self.lengths[chosen] - before_end, before_end <= 0
