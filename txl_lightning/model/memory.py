"""Memory of segment recurrence: a value that is passed along, never a buffer of a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """Inputs of the layers at earlier tokens (paper §3.2).

    Entry n holds the *inputs* of layer n + 1: entry 0 the embedding after dropout, entry n the output of
    layer n. The states carry no gradient. A memory is a value: `update` returns a new one. It must not become
    a registered buffer: DDP would overwrite it with that of rank 0, and weight averaging would average it.

    Args:
        states: the states, oldest first. M may be below the model's `mem_len` (a memory that grows) or
            equal to it from the start (static shapes, for compilation).
        filled: number of states, counted from the newest, that were written; the others are never attended to.
        first_column: index of the first stream among all columns of the global batch.
    """

    states: Float[Tensor, "N B M D"]
    filled: int
    first_column: int = 0

    @property
    def length(self) -> int:
        """M, states per layer, written or not."""
        return self.states.shape[2]

    @property
    def batch_size(self) -> int:
        """B, streams."""
        return self.states.shape[1]

    @torch.no_grad()
    def update(self, inputs: Sequence[Float[Tensor, "B T D"]], mem_len: int, ext_len: int = 0) -> Memory:
        """Append one segment's layer inputs and keep the last `mem_len` states.

            end = M + max(0, T - ext_len)        begin = max(0, end - mem_len)
            new = [memory ∘ inputs][begin:end]

        The last `ext_len` tokens are left out: they are fed again as extended context of the next segment.
        """
        appended = max(0, inputs[0].shape[1] - ext_len)
        length = min(mem_len, self.length + appended)
        taken = min(appended, length)
        kept = length - taken
        states = torch.stack([x[:, appended - taken : appended] for x in inputs])
        if kept:
            old = self.states[:, :, self.length - kept :].to(states.dtype)
            states = torch.cat([old, states], dim=2)
        return replace(self, states=states, filled=min(mem_len, self.filled + appended))

    def columns(self, start: int, stop: int) -> Memory:
        """Return the memory of streams `start` to `stop` (exclusive), counted within this memory."""
        return replace(self, states=self.states[:, start:stop], first_column=self.first_column + start)

    @staticmethod
    def join(parts: Sequence[Memory]) -> Memory:
        """Join the memories of neighbouring columns, in the order of their columns.

        Raises:
            ValueError: the parts leave a gap, overlap, or were filled to different lengths.
        """
        parts = sorted(parts, key=lambda part: part.first_column)
        column = parts[0].first_column
        for part in parts:
            if part.first_column != column or part.filled != parts[0].filled:
                raise ValueError(
                    f"memory parts do not join: columns from {part.first_column} filled {part.filled}, "
                    f"expected columns from {column} filled {parts[0].filled}"
                )
            column += part.batch_size
        return replace(parts[0], states=torch.cat([part.states for part in parts], dim=1))

    def to(self, device: torch.device | str) -> Memory:
        """Copy the memory to a device."""
        return replace(self, states=self.states.to(device))

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        return {"states": self.states, "filled": self.filled, "first_column": self.first_column}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Memory:
        """Rebuild a memory from `state_dict`."""
        return cls(states=state["states"], filled=int(state["filled"]), first_column=int(state["first_column"]))
