"""Memory of cached inference: projected keys and values, in a window that slides along a longer buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

SLACK = 1.5  # a new buffer is that much longer than what it must hold at once
MOVE = 1.2  # one that is at least that much longer is kept, and its window moved back to the front


@dataclass
class KeyValueMemory:
    """Keys and values of the last `mem_len` tokens, in place of the hidden states of `Memory`.

        buffer   [ left behind | filled: the memory | room for a segment |         ]
                                ^ begin

    A segment's keys and values are written behind the memory, so that attention reads memory and segment
    as one view; afterwards the window slides on. Where the buffer ends, the memory is moved back to its
    front, after so many tokens that the move costs next to nothing for each of them.

    Unlike `Memory` this is no value: each may be given to a model once, and is spent then, because the
    model writes into its buffer and passes that on to the memory which it returns. Using a spent one
    raises; `copy` makes another.

    Args:
        buffer_NPXCE: of N layers, keys and values (P = 2) or values alone, X = H·B heads of streams, C
            places; None once spent.
        batch_size: B, streams.
        made_by: whoever can read it.
        begin: first place of the window.
        filled: how many states it holds.
    """

    buffer_NPXCE: Tensor | None
    batch_size: int
    made_by: object
    begin: int = 0
    filled: int = 0

    def spend(self) -> KeyValueMemory:
        """The one memory that may use the buffer from now on.

        Raises:
            ValueError: the memory was spent before.
        """
        self._buffer()
        successor = replace(self)
        self.buffer_NPXCE = None
        return successor

    def copy(self) -> KeyValueMemory:
        """A second memory of the same content, to continue twice from one place.

        Raises:
            ValueError: the memory was spent before.
        """
        window = self._buffer()[..., self.begin : self.begin + self.filled, :]
        return replace(self, buffer_NPXCE=window.clone(), begin=0)

    @torch.no_grad()
    def make_room(self, T: int) -> None:
        """Arrange that T places follow the memory."""
        buffer, needed = self._buffer(), self.filled + T
        capacity = buffer.shape[3]
        if self.begin + needed <= capacity:
            return
        longer = buffer
        if capacity < MOVE * needed:
            longer = buffer.new_empty((*buffer.shape[:3], int(SLACK * needed), buffer.shape[4]))
        for old, new in zip(buffer, longer, strict=True):
            window = old[:, :, self.begin : self.begin + self.filled]
            new[:, :, : self.filled] = window.clone() if longer is buffer else window  # which may overlap
        self.buffer_NPXCE, self.begin = longer, 0

    @torch.no_grad()
    def write(self, n: int, kv_PHBTE: Float[Tensor, "P H B T E"]) -> Float[Tensor, "P H B K E"]:
        """Put a segment's keys and values of layer n behind the memory; all K = M + T of them, as a view.

        Raises:
            ValueError: they are of another type than the memory, as with autocast switched in between.
        """
        buffer, (P, H, B, T, E) = self._buffer(), kv_PHBTE.shape
        if kv_PHBTE.dtype != buffer.dtype:
            raise ValueError(f"keys and values of {kv_PHBTE.dtype} given to a memory of {buffer.dtype}")
        window = buffer[n, :, :, self.begin : self.begin + self.filled + T].view(P, H, B, self.filled + T, E)
        window[:, :, :, self.filled :] = kv_PHBTE
        return window

    def advance(self, T: int, mem_len: int, ext_len: int) -> None:
        """Remember the T tokens that were written but the last `ext_len`, and the last `mem_len` of all."""
        end = self.filled + max(0, T - ext_len)
        self.filled = min(mem_len, end)
        self.begin += end - self.filled

    def _buffer(self) -> Tensor:
        if self.buffer_NPXCE is None:
            raise ValueError(
                "this memory is spent: the keys and values that it held have moved on into the memory which the "
                "model returned for it; pass that one, or keep a copy() to continue from here twice"
            )
        return self.buffer_NPXCE
