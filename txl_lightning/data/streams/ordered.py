"""Segments, the base class of streams, and ordered streams: contiguous columns of a corpus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_lightning.errors import OptionError, require


class Segment(NamedTuple):
    """Batch: T consecutive positions of B streams.

    Args:
        tokens: [B, E + T] token numbers; the first E, at most `ext_len`, are extended context.
        targets: [B, T] token numbers, each the token after its position.
        number: index of the segment in the epoch; the memory is reset at 0.
    """

    tokens: Tensor
    targets: Tensor
    number: int


class Streams(ABC):
    """Columns of text as an iterable of `Segment` with a length and a position that can be saved and restored.

    A segment depends on its index and the epoch only, so that an iteration can resume anywhere. The columns of all
    ranks together are those of a single process.
    """

    segment_len: int
    ext_len: int
    first_column: int
    position: int
    _start: int

    @property
    @abstractmethod
    def n_targets(self) -> int:
        """Number of targets in one epoch of this rank's columns."""

    @property
    @abstractmethod
    def left_out(self) -> dict[str, int]:
        """Number of tokens of the split that are not a target on any rank, by reason.

        `first_of_streams`: first tokens of columns; `trimmed`: tokens that do not fill all columns evenly.
        """

    @abstractmethod
    def positions(self, index: int) -> NDArray[np.int64]:
        """Return the positions in the split of a segment's targets, [B, T]."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Segment: ...

    def __iter__(self) -> Iterator[Segment]:
        """Yield all segments of the epoch, or once those from a restored position on."""
        start, self._start = self._start, 0
        if start == 0 and self.position == len(self):  # the last iteration stopped after the last segment
            self._end_epoch()
        for index in range(start, len(self)):
            segment = self[index]
            self.position = index + 1
            yield segment
        self._end_epoch()

    def state_dict(self) -> dict[str, int]:
        """Return the position: number of segments of the epoch already yielded."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the position, from which the next iteration continues.

        After the last segment that iteration is empty, as the trainer ends the epoch before it starts the next.
        """
        self.position = self._start = int(state["position"])

    def _end_epoch(self) -> None:
        self.position = 0

    @staticmethod
    def _check_sizes(batch_size: int, segment_len: int, world_size: int) -> None:
        require(batch_size >= 1, "batch_size", batch_size, "must be an integer >= 1")
        require(segment_len >= 1, "segment_len", segment_len, "must be an integer >= 1")
        allowed = f"must be at least the {world_size} processes, a stream for each"
        require(batch_size >= world_size, "batch_size", batch_size, allowed)


class OrderedStreams(Streams):
    """Streams that read a corpus in its own order.

    n tokens and a global batch of B give B contiguous columns of n // B tokens; the rest is trimmed. Rank r of W reads
    the columns [rB/W, (r+1)B/W), rounded down, so that results do not depend on W. In a column every token but the
    first is a target exactly once, in order; the last segment may be shorter.

    Args:
        tokens: the whole split, one-dimensional.
        batch_size: B, global.
        segment_len: T.
        ext_len: tokens of extended context in front of every segment (fewer at a column's start).
        rank: r.
        world_size: W.

    Raises:
        OptionError: B is less than W, or a column is shorter than two tokens.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        segment_len: int,
        ext_len: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._check_sizes(batch_size, segment_len, world_size)
        column_len = len(tokens) // batch_size
        if column_len < 2:
            raise OptionError(
                "batch_size",
                batch_size,
                f"gives {column_len} of {len(tokens)} tokens per stream; at least 2 are needed",
            )
        columns = tokens[: column_len * batch_size].reshape(batch_size, column_len)
        self.first_column = rank * batch_size // world_size
        self.columns_BL = columns[self.first_column : (rank + 1) * batch_size // world_size]
        self.segment_len, self.ext_len = segment_len, ext_len
        self._left_out = {"first_of_streams": batch_size, "trimmed": len(tokens) - batch_size * column_len}
        self.position = self._start = 0

    @property
    def n_targets(self) -> int:
        return self.columns_BL.shape[0] * (self.columns_BL.shape[1] - 1)

    @property
    def left_out(self) -> dict[str, int]:
        return dict(self._left_out)

    def positions(self, index: int) -> NDArray[np.int64]:
        B, L = self.columns_BL.shape
        start = index * self.segment_len
        columns = np.arange(self.first_column, self.first_column + B, dtype=np.int64)
        return columns[:, None] * L + np.arange(start + 1, min(start + self.segment_len, L - 1) + 1)

    def __len__(self) -> int:
        return -(-(self.columns_BL.shape[1] - 1) // self.segment_len)

    def __getitem__(self, index: int) -> Segment:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.segment_len
        stop = min(start + self.segment_len, self.columns_BL.shape[1] - 1)
        first = max(0, start - self.ext_len)
        window = torch.from_numpy(self.columns_BL[:, first : stop + 1].astype(np.int64))
        return Segment(tokens=window[:, :-1], targets=window[:, start - first + 1 :], number=index)
