"""Memory of cached inference: keys and values in a window that slides along a longer buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txl_lightning.model.positions import states_of_document

GROWTH = 1.5  # length of a new buffer, relative to what it must hold at once
REUSE = 1.2  # a buffer of at least this relative length is kept, and its window moved to the front


@dataclass
class KeyValueMemory:
    """Keys and values of the last `mem_len` tokens, in place of the hidden states of `Memory`.

        buffer   [ forgotten | filled: the memory | space for a segment |         ]
                              ^ begin

    The keys and values of a segment are written after the memory, so that attention reads both as one view;
    then the window moves. At the end of the buffer the memory is moved to its front. Moves are so rare
    that their cost per token is negligible.

    Unlike `Memory` this is not a value: the model writes into the buffer and passes it to the memory that it
    returns. A memory can therefore be given to a model once; a second use raises, and `copy` avoids it.

    Args:
        buffer_NPXCE: keys and values (P = 2) or values alone of N layers, X = H·B heads of streams and C
            places; None once the memory was given to a model.
        batch_size: B, streams.
        made_by: object whose memory this is.
        begin: first place of the window.
        filled: number of states that it holds.
        in_document_B: how many of them belong to each stream's present document (see `Memory`).
    """

    buffer_NPXCE: Tensor | None
    batch_size: int
    made_by: object
    begin: int = 0
    filled: int = 0
    in_document_B: Int[Tensor, " B"] | None = None

    def spend(self) -> KeyValueMemory:
        """Move the buffer to a new memory; this one cannot be used again.

        Raises:
            ValueError: the memory was spent before.
        """
        self._buffer()
        successor = replace(self)
        self.buffer_NPXCE = None
        return successor

    def copy(self) -> KeyValueMemory:
        """Return a second memory of the same content, to continue twice from one place.

        Raises:
            ValueError: the memory was spent before.
        """
        window = self._buffer()[..., self.begin : self.begin + self.filled, :]
        return replace(self, buffer_NPXCE=window.clone(), begin=0)

    @torch.no_grad()
    def make_room(self, T: int) -> None:
        """Ensure that T places follow the memory: move it to the front, or into a longer buffer."""
        buffer, needed = self._buffer(), self.filled + T
        capacity = buffer.shape[3]
        if self.begin + needed <= capacity:
            return
        longer = buffer
        if capacity < REUSE * needed:
            longer = buffer.new_empty((*buffer.shape[:3], int(GROWTH * needed), buffer.shape[4]))
        for old, new in zip(buffer, longer, strict=True):
            window = old[:, :, self.begin : self.begin + self.filled]
            new[:, :, : self.filled] = window.clone() if longer is buffer else window  # source and target may overlap
        self.buffer_NPXCE, self.begin = longer, 0

    @torch.no_grad()
    def write(self, n: int, kv_PHBTE: Float[Tensor, "P H B T E"]) -> Float[Tensor, "P H B K E"]:
        """Write a segment's keys and values of layer n after the memory; return all K = M + T as a view.

        Raises:
            ValueError: they have another type than the memory.
        """
        buffer, (P, H, B, T, E) = self._buffer(), kv_PHBTE.shape
        if kv_PHBTE.dtype != buffer.dtype:
            raise ValueError(f"keys and values of {kv_PHBTE.dtype} given to a memory of {buffer.dtype}")
        window = buffer[n, :, :, self.begin : self.begin + self.filled + T].view(P, H, B, self.filled + T, E)
        window[:, :, :, self.filled :] = kv_PHBTE
        return window

    def advance(self, T: int, mem_len: int, ext_len: int, first_BT: Int[Tensor, "B T"] | None = None) -> None:
        """Add the T written tokens but the last `ext_len` to the memory, and keep its last `mem_len` tokens."""
        appended = max(0, T - ext_len)
        if first_BT is not None and self.in_document_B is not None:
            self.in_document_B = states_of_document(first_BT, self.filled, appended, mem_len, self.in_document_B)
        end = self.filled + appended
        self.filled = min(mem_len, end)
        self.begin += end - self.filled

    def _buffer(self) -> Tensor:
        if self.buffer_NPXCE is None:
            raise ValueError(
                "this memory is spent: its keys and values are now in the memory that the model returned for it; "
                "pass that one, or use copy() to continue twice from one place"
            )
        return self.buffer_NPXCE
