"""A run's state besides its weights: the memory carried from batch to batch, and random states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from lightning import seed_everything

from txl_lightning.data.streams import Batch, part_of_streams
from txl_lightning.errors import UserError
from txl_lightning.evaluation.models import State
from txl_lightning.ranks import Ranks
from txl_lightning.training import Values


class CarriedMemory:
    """Memory between the segments in one pass over ordered streams; one value for each group of streams.

    It is empty at segment 0. A segment that does not follow the last one is an error: with a shuffling loader the
    memory would hold states from unrelated text.

    Attributes:
        restored: memory for all streams, from a checkpoint, until the first batch says which streams this rank has.
    """

    def __init__(self) -> None:
        self.restored: Any = None
        self._next_number = 0  # for the restored memory
        # By group: the memory after the last segment, and the number of the next one.
        self._states: dict[int, tuple[Any, int]] = {}
        self._undo: tuple[int, tuple[Any, int]] | None = None

    @property
    def value(self) -> Any:
        """The first group's memory; None before the first segment."""
        return self._state(0)[0]

    def _state(self, group: int) -> tuple[Any, int]:
        return self._states.get(group, (None, 0))

    def before(self, batch: Batch) -> Any:
        """Return the memory to score a batch with; None at segment 0, or where a resumed run found none.

        Some optimizers score a batch several times in one step, each time with the same memory.

        Raises:
            RuntimeError: the segment does not follow the last one.
            UserError: it has another number of rows.
        """
        if batch.number == 0:
            return None
        if self._state(batch.group)[1] == batch.number + 1:
            self.undo()
        memory, expected = self._state(batch.group)
        if batch.number != expected:
            found = f"expected segment {expected}, got segment {batch.number}"
            raise RuntimeError(f"{found}: a model with memory needs ordered, non-shuffled streams")
        n_rows = len(batch.targets)
        if memory is not None and memory.batch_size != n_rows:
            rows = (
                f"segment {batch.number} has {n_rows} rows, the one before had {memory.batch_size}"
            )
            raise UserError(f"{rows}: every row continues its stream (DataLoader: drop_last=True)")
        return memory

    def after(self, batch: Batch, memory: Any) -> None:
        """Store the memory that scoring `batch` returned."""
        self._undo = (batch.group, self._state(batch.group))
        self._states[batch.group] = (memory, batch.number + 1)

    def confirm(self) -> None:
        """Note that the last batch's step was completed."""
        self._undo = None

    def undo(self) -> None:
        """Forget the last batch, if its step was not completed."""
        if self._undo is not None:
            group, state = self._undo
            self._states[group] = state
            self._undo = None

    def state_dict(self, ranks: Ranks) -> Values:
        """Return plain containers with the memory for all streams; all ranks must call this, the first one gets it."""
        joined = self.restored
        next_number = self._next_number
        if self._states:
            numbers = set()
            parts = []
            for memory, number in self._states.values():
                numbers.add(number)
                if memory is not None:
                    parts.append(memory.to("cpu"))
            next_number = max(numbers)
            if len(numbers) > 1:  # saved between the groups of one step
                parts = []
            joined = join_in_order(_to_first_rank(parts, ranks))
        return {
            "next_number": next_number,
            "memory": None if joined is None else joined.state_dict(),
        }

    def load_state_dict(self, state: Values, model: Any) -> None:
        """Restore the memory for all streams; `distribute` then gives each rank its part."""
        self._states = {}
        self._next_number = state["next_number"]
        self.restored = None
        if state["memory"] is not None:
            self.restored = model.state_class.from_state_dict(state["memory"])

    def distribute(
        self, first: int, n_rows: int, n_streams: int, batch: Batch, n_groups: int
    ) -> str | None:
        """Give this rank its part of the restored memory; return why it cannot be used, None if it can.

        Args:
            first: this rank's first stream.
            n_rows: streams on this rank.
            n_streams: streams on all ranks.
            batch: the run's first batch.
            n_groups: number of groups.
        """
        memory, self.restored = self.restored, None
        problem = None
        if memory is None:
            problem = "it was saved without"
        elif memory.batch_size != n_streams:
            problem = f"it was saved with {memory.batch_size} streams, now there are {n_streams}"
        elif self._next_number != batch.number and batch.number:
            problem = f"it was saved before segment {self._next_number}, not {batch.number}"
        for group in range(n_groups):
            part = None
            if problem is None:
                start, end = part_of_streams(n_rows, group, n_groups)
                part = memory.streams(first + start, first + end)
            self._states[group] = (part, batch.number)
        return problem


def _to_first_rank(parts: list[Any], ranks: Ranks) -> list[Any]:
    """Return the parts from all ranks, in their order, on the first rank; elsewhere an empty list."""
    if ranks.world_size == 1:
        return parts
    of_ranks: list[Any] | None = None
    if ranks.rank == 0:
        of_ranks = [None] * ranks.world_size
    dist.gather_object(parts, of_ranks, dst=0, group=ranks.group)
    return [part for parts_of_rank in of_ranks or [] for part in parts_of_rank]


def join_in_order(memories: Sequence[State]) -> State | None:
    """Join neighbouring streams' memories, given in order; None without any."""
    if not memories:
        return None
    placed = []
    column = 0
    for memory in memories:
        placed.append(replace(memory, first_column=column))
        column += memory.batch_size
    return type(placed[0]).join(placed)  # type: ignore[arg-type]


def random_state() -> Values:
    """Return the states of torch's generators: the CPU's and this process's GPU's."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(states: list[Values], ranks: Ranks, *seeds: int) -> None:
    """Restore this rank's random state, so that a resumed run draws the same dropout masks.

    If more ranks resume than wrote the checkpoint, the additional ones get a new seed.

    Args:
        states: from the ranks that wrote the checkpoint.
        ranks: the run's processes.
        seeds: the run's seed and step.
    """
    if ranks.rank >= len(states):
        seed_everything(ranks.seed(*seeds), verbose=False)
        return
    state = states[ranks.rank]
    torch.set_rng_state(state["cpu"])
    if state.get("cuda") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
