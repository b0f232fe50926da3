"""Shuffled streams: sentences in a new order every epoch, joined into columns without gaps (lm1b)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from txl_lightning.data.streams.ordered import Segment, Streams
from txl_lightning.errors import OptionError


class ShuffledStreams(Streams):
    """Streams over a corpus of unordered sentences.

    Every sentence begins with `<S>`, and every column is filled sentence by sentence: `<S> a b <S> c d <S> …`. The end
    of a sentence is predicted as the `<S>` of the next one. The original stores `<S>` at both ends of a sentence but
    never predicts the duplicate; here it is stored once.

    The sentences in the epoch's order are cut into B consecutive columns of nearly equal length, each starting with a
    sentence. All columns are read up to the length of the shortest one; the remaining tokens, fewer than the longest
    sentence in each column, are left out. With shuffling the shortest length possible in any order is used, so that
    `len` is the same in every epoch. Without (evaluation) it is the actual one, and the last segment may be shorter.
    The order depends on seed and epoch only, not on the segment length or W.

    Args:
        tokens: the whole split, one-dimensional.
        starts: positions of the first tokens of sentences in it, ascending from 0.
        batch_size: B, global.
        segment_len: T.
        ext_len: tokens of extended context in front of every segment (fewer at a column's start).
        rank: r.
        world_size: W.
        seed: of the shuffling.
        shuffle: whether to use a new order in every epoch, or the order of the text.

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
        """Number of tokens of the current epoch that are not a target on any rank, by reason.

        `first_of_streams`: `<S>` at the starts of columns that no other column predicts; `trimmed`: ends of columns.
        One `<S>` after the last sentence is counted in addition to the tokens of the split.
        """
        self._order()
        targets, starts = self.batch_size * self._column_len, self._column_starts[: self.batch_size]
        firsts = 1 + int((starts[1:] != starts[:-1] + self._column_len).sum())
        return {"first_of_streams": firsts, "trimmed": len(self.tokens) + 1 - targets - firsts}

    def positions(self, index: int) -> NDArray[np.int64]:
        """Return the positions in the split of a segment's targets, [B, T]; the final `<S>` is after its last token."""
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
        """Return the epoch and the position in it."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = int(state["epoch"])
        super().load_state_dict(state)

    def _end_epoch(self) -> None:
        super()._end_epoch()
        self.epoch += 1

    def _order(self) -> None:
        """Compute the epoch's order of sentences, their ends in it, and the starts of columns."""
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
        """Return the tokens at places of the epoch's order; `<S>` after the last sentence."""
        inside, behind = self._in_text(places)
        return self.tokens[np.where(behind, 0, inside)].astype(np.int64)

    def _in_text(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions in the split of places of the epoch's order, and which are after the last sentence."""
        sentence = np.minimum(np.searchsorted(self._ends, places, side="right"), len(self._ends) - 1)
        before_end = self._ends[sentence] - places
        chosen = self._sentences[sentence]
        return self.starts[chosen] + self.lengths[chosen] - before_end, before_end <= 0
