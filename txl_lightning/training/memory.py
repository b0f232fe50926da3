"""The memory that training or evaluation carries from batch to batch, and its place in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from txl_lightning.data.streams import Batch, part_of_streams
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import UserError
from txl_lightning.evaluation.models import State


class CarriedMemory:
    """Memory between the segments of one pass over ordered streams; one value for each group of streams.

    It is empty at segment 0. A segment that does not follow the last one is an error: with a shuffling loader the
    memory would hold states of unrelated text.

    Attributes:
        values: memory after the last segment, by group.
        numbers: number of the segment that follows, by group.
        restored: memory of all streams, from a checkpoint, until the first batch says which are of this rank.
    """

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.restored: Any = None
        self._next_number = 0  # of the restored memory
        self._undo: tuple[int, Any, int] | None = None

    @property
    def value(self) -> Any:
        """Memory of the first group; None before the first segment."""
        return self.values.get(0)

    def before(self, batch: Batch) -> Any:
        """Return the memory to score a batch with; None at segment 0, or where a resumed run found none.

        Raises:
            RuntimeError: the segment does not follow the last one.
            UserError: it has another number of rows.
        """
        if batch.number == 0:
            return None
        expected = self.numbers.get(batch.group, 0)
        if batch.number != expected:
            found = f"expected segment {expected}, got segment {batch.number}"
            raise RuntimeError(f"{found}: a model with memory needs ordered, non-shuffled streams")
        memory = self.values.get(batch.group)
        n_rows = len(batch.targets)
        if memory is not None and memory.batch_size != n_rows:
            rows = (
                f"segment {batch.number} has {n_rows} rows, the one before had {memory.batch_size}"
            )
            raise UserError(f"{rows}: every row continues its stream (DataLoader: drop_last=True)")
        return memory

    def after(self, batch: Batch, memory: Any) -> None:
        """Store the memory that scoring `batch` returned."""
        group = batch.group
        number = self.numbers.get(group, 0)
        self._undo = (group, self.values.get(group), number)
        self.values[group] = memory
        self.numbers[group] = batch.number + 1

    def confirm(self) -> None:
        """Note that the step of the last batch was completed."""
        self._undo = None

    def undo(self) -> None:
        """Forget the last batch, if its step was not completed."""
        if self._undo is not None:
            group, memory, number = self._undo
            self.values[group] = memory
            self.numbers[group] = number
            self._undo = None

    def state_dict(self, ranks: Ranks) -> dict[str, Any]:
        """Return plain containers with the memory of all streams; all ranks must call this, the first one gets it."""
        numbers = set(self.numbers.values())
        next_number = max(numbers, default=self._next_number)
        parts = []
        for group in sorted(self.values):
            memory = self.values[group]
            if memory is not None:
                parts.append(memory.to("cpu"))
        if len(numbers) > 1:  # saved between the groups of one step
            parts = []
        memory = self.restored
        if self.numbers:
            memory = join_in_order(_to_first_rank(parts, ranks))
        return {
            "next_number": next_number,
            "memory": None if memory is None else memory.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], model: Any) -> None:
        """Restore the memory of all streams; `distribute` then gives each rank its own."""
        self.values = {}
        self.numbers = {}
        self._next_number = state["next_number"]
        self.restored = None
        if state["memory"] is not None:
            self.restored = model.state_class.from_state_dict(state["memory"])

    def distribute(
        self, first: int, n_rows: int, n_streams: int, batch: Batch, n_groups: int
    ) -> str | None:
        """Split the restored memory; return why it cannot be used, None if it can.

        Args:
            first: index of this rank's first stream.
            n_rows: number of this rank's streams.
            n_streams: number of streams of all ranks.
            batch: first batch of the resumed run.
            n_groups: number of groups.
        """
        memory, self.restored = self.restored, None
        problem = None
        if memory is not None and memory.batch_size != n_streams:
            problem = f"it was saved with {memory.batch_size} streams, now there are {n_streams}"
            memory = None
        for group in range(n_groups):
            self.numbers[group] = batch.number if problem else self._next_number
            if memory is not None:
                start, end = part_of_streams(n_rows, group, n_groups)
                self.values[group] = memory.streams(first + start, first + end)
        return problem


def _to_first_rank(parts: list[Any], ranks: Ranks) -> list[Any]:
    """Return the parts of all ranks, in their order, on the first rank; elsewhere an empty list."""
    if ranks.world_size == 1:
        return parts
    of_ranks: list[Any] | None = None
    if ranks.rank == 0:
        of_ranks = [None] * ranks.world_size
    dist.gather_object(parts, of_ranks, dst=0, group=ranks.group)
    return [part for parts_of_rank in of_ranks or [] for part in parts_of_rank]


def join_in_order(memories: Sequence[State]) -> State | None:
    """Join the memories of neighbouring streams, given in their order; None without any."""
    if not memories:
        return None
    placed = []
    column = 0
    for memory in memories:
        placed.append(replace(memory, first_column=column))
        column += memory.batch_size
    if len(placed) == 1:
        return placed[0]
    return type(placed[0]).join(placed)  # type: ignore[arg-type]
