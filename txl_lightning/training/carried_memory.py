"""Memory that is carried from segment to segment, and its division into columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.models import State, state_from_dict


class CarriedMemory:
    """Memory between the segments of one pass over ordered streams.

    The memory is empty at segment 0. A segment that does not follow the last one is an error: with a shuffling
    loader the memory would hold states of unrelated text.

    Args:
        rank: rank of this process; its streams are columns [rank · B, (rank + 1) · B).
    """

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.memory: Any = None
        self.next_number = 0

    def load_for(self, segment: Segment) -> Any:
        """Return the memory to score `segment` with; None at segment 0.

        Raises:
            RuntimeError: the segment does not follow the last one.
        """
        if segment.number == 0:
            return None
        if segment.number != self.next_number:
            raise RuntimeError(
                f"expected segment {self.next_number}, got segment {segment.number}: a model with memory needs "
                "ordered, non-shuffled streams"
            )
        return self.memory

    def store_after(self, segment: Segment, memory: Any) -> None:
        """Store the memory that scoring `segment` returned."""
        if self.rank:
            memory = replace(memory, first_column=self.rank * memory.batch_size)
        self.memory, self.next_number = memory, segment.number + 1

    def state_dict(self, ranks: Ranks, with_memory: bool = True) -> dict[str, Any]:
        """Return plain containers; on rank 0 they hold the memory of all columns of the global batch."""
        whole = None
        if with_memory and self.memory is not None:
            parts = ranks.gather(self.memory.to("cpu").state_dict())
            whole = parts and join_columns([state_from_dict(part) for part in parts]).state_dict()
        return {"memory": whole, "next_number": self.next_number}

    def load_state_dict(self, state: dict[str, Any], ranks: Ranks) -> None:
        """Restore this rank's columns; the number of ranks may differ from the one that wrote the state."""
        self.memory, self.next_number = None, state["next_number"]
        if state["memory"]:
            whole = state_from_dict(state["memory"])
            first, end = (rank * whole.batch_size // ranks.world_size for rank in (ranks.rank, ranks.rank + 1))
            self.memory = whole.columns(first, end)


def column_chunks(segment: Segment, memory: State | None, n: int) -> Iterator[tuple[int, Segment, State | None]]:
    """Yield n chunks of B/n neighbouring columns: first column, segment and memory of each."""
    B = segment.tokens.shape[0]
    for first in range(0, B, B // n):
        end = first + B // n
        chunk = segment._replace(tokens=segment.tokens[first:end], targets=segment.targets[first:end])
        yield first, chunk, None if memory is None else memory.columns(first, end)


def join_columns(memories: Sequence[State]) -> State:
    """Join the memories of neighbouring columns."""
    return memories[0] if len(memories) == 1 else type(memories[0]).join(memories)  # type: ignore[arg-type]


def take_loss(memory: Any) -> tuple[Any, Tensor | None]:
    """Return the memory without its compression loss, and that loss; None for memories without one."""
    loss = getattr(memory, "compression_loss", None)
    return memory if loss is None else replace(memory, compression_loss=None), loss


def alike(before: State | None, after: State | None) -> bool:
    """Return whether two memories differ in the values of their states at most."""
    if before is None or after is None:
        return False
    described = [
        {name: (value.shape, value.dtype) if isinstance(value, Tensor) else value for name, value in parts.items()}
        for parts in (before.state_dict(), after.state_dict())
    ]
    return described[0] == described[1]


def choose(condition: Tensor, before: Any, after: Any) -> Any:
    """Return the states of `before` where `condition` is true, else those of `after`, without reading `condition`.

    Args:
        condition: one truth value on the device of the memories.
        before: a memory.
        after: a memory that is `alike`.
    """
    old, new = before.state_dict(), after.state_dict()
    states = {name: torch.where(condition, old[name], new[name]) for name in new if isinstance(new[name], Tensor)}
    return replace(after, **states)
