"""Memory of segment recurrence: a value that is passed along, never a buffer of a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txl_lightning.model.positions import states_of_document


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
        in_document_B: number of states, counted from the newest, that belong to each stream's present document; None
            unless the memory is reset at documents.
    """

    states: Float[Tensor, "N B M D"]
    filled: int
    first_column: int = 0
    in_document_B: Int[Tensor, " B"] | None = None

    @property
    def length(self) -> int:
        """M, states per layer, written or not."""
        return self.states.shape[2]

    @property
    def batch_size(self) -> int:
        """B, streams."""
        return self.states.shape[1]

    @torch.no_grad()
    def update(
        self,
        inputs: Sequence[Float[Tensor, "B T D"]],
        mem_len: int,
        ext_len: int = 0,
        first_BT: Int[Tensor, "B T"] | None = None,
    ) -> Memory:
        """Append one segment's layer inputs and keep the last `mem_len` states.

            end = M + max(0, T - ext_len)        begin = max(0, end - mem_len)
            new = [memory ∘ inputs][begin:end]

        The last `ext_len` tokens are left out: they are fed again as extended context of the next segment.

        Args:
            inputs: inputs of the layers, in their order.
            mem_len: longest memory.
            ext_len: tokens of extended context.
            first_BT: first key of each token's document (`positions.first_of_documents`), if documents are told apart.
        """
        appended = max(0, inputs[0].shape[1] - ext_len)
        length = min(mem_len, self.length + appended)
        taken = min(appended, length)
        kept = length - taken
        states = torch.stack([x[:, appended - taken : appended] for x in inputs])
        if kept:
            old = self.states[:, :, self.length - kept :].to(states.dtype)
            states = torch.cat([old, states], dim=2)
        in_document_B = None
        if first_BT is not None:
            in_document_B = states_of_document(first_BT, self.length, appended, mem_len, self.document_states())
        return replace(self, states=states, filled=min(mem_len, self.filled + appended), in_document_B=in_document_B)

    def document_states(self) -> Int[Tensor, " B"]:
        """Return `in_document_B`; of a memory that was not reset so far, all states belong to one document."""
        if self.in_document_B is not None:
            return self.in_document_B
        return torch.full((self.batch_size,), self.filled, device=self.states.device)

    def columns(self, start: int, stop: int) -> Memory:
        """Return the memory of streams `start` to `stop` (exclusive), counted within this memory."""
        in_document_B = None if self.in_document_B is None else self.in_document_B[start:stop]
        first_column = self.first_column + start
        return replace(self, states=self.states[:, start:stop], first_column=first_column, in_document_B=in_document_B)

    @staticmethod
    def join(parts: Sequence[Memory]) -> Memory:
        """Join the memories of neighbouring columns, in the order of their columns.

        Raises:
            ValueError: the parts leave a gap, overlap, or were filled to different lengths.
        """
        parts = in_column_order(parts)
        for part in parts:
            if part.filled != parts[0].filled:
                raise ValueError(
                    f"parts do not join: columns from {part.first_column} filled {part.filled}, "
                    f"expected filled {parts[0].filled}"
                )
        in_document_B = None
        if parts[0].in_document_B is not None:
            in_document_B = torch.cat([part.document_states() for part in parts])
        states = torch.cat([part.states for part in parts], dim=1)
        return replace(parts[0], states=states, in_document_B=in_document_B)

    def to(self, device: torch.device | str) -> Memory:
        """Copy the memory to a device."""
        in_document_B = None if self.in_document_B is None else self.in_document_B.to(device)
        return replace(self, states=self.states.to(device), in_document_B=in_document_B)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        state = {"states": self.states, "filled": self.filled, "first_column": self.first_column}
        return state if self.in_document_B is None else {**state, "in_document_B": self.in_document_B}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Memory:
        """Rebuild a memory from `state_dict`."""
        numbers = {name: int(state[name]) for name in ("filled", "first_column")}
        return cls(states=state["states"], **numbers, in_document_B=state.get("in_document_B"))


def in_column_order(parts: Sequence[Any]) -> list[Any]:
    """Return memories, or other states, of neighbouring columns in the order of their columns.

    Raises:
        ValueError: the parts leave a gap or overlap.
    """
    parts = sorted(parts, key=lambda part: part.first_column)
    column = parts[0].first_column
    for part in parts:
        if part.first_column != column:
            raise ValueError(f"parts do not join: columns from {part.first_column}, expected columns from {column}")
        column += part.batch_size
    return parts
