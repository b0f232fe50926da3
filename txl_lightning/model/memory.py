"""Memory for segment recurrence: a value that is passed along, never a module's buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txl_lightning.model.positions import StreamBounds, roll_streams
from txl_lightning.model.shapes import Counts, Flags, Hidden

State = TypeVar("State", bound="CarriedState")


@dataclass
class CarriedState:
    """Base class for what a model carries from one segment to the next: tensors [N, B, …] or [B].

    They carry no gradient from one training step to the next.

    It is a value: a model returns a new one and changes none. (Not a frozen dataclass: Lightning Fabric sets a copy's
    fields.) It must not become a registered buffer: DDP would replace every rank's memory by rank 0's, and weight
    averaging would average it.

    Args:
        first_column: the first stream's index in the global batch. Checkpoints have this name.
    """

    first_column: int = field(default=0, kw_only=True)

    @property
    def batch_size(self) -> int:
        """B, streams."""
        raise NotImplementedError

    def streams(self: State, start: int, stop: int) -> State:
        """Return the state for streams `start` to `stop` (exclusive), counted within this state."""
        part = self._changed(
            lambda x: x.narrow(
                _streams_axis(x),
                start,
                stop - start,
            )
        )
        return replace(part, first_column=self.first_column + start)

    def select(self: State, indices: Int[Tensor, " S"] | Sequence[int]) -> State:
        """Return the state for the streams with these indices; one may be left out or repeated."""

        def selected(x: Tensor) -> Tensor:
            indices_S = torch.as_tensor(indices, device=x.device)
            return x.index_select(_streams_axis(x), indices_S)

        return self._changed(selected)

    def to(self: State, device: torch.device | str) -> State:
        """Copy the state to a device."""
        return self._changed(lambda x: x.to(device))

    def reset(self: State, done_B: Flags) -> State:
        """Let the streams where `done_B` is true start from scratch: their next token begins an episode.

        Such a stream computes what it computes after `start_memory`; all others are unchanged bit by bit. This method
        sets tensors [N, B, D] to zero; a state with other tensors overrides it.

        Args:
            done_B: on any device.

        Raises:
            ValueError: it does not have one value for each stream.
        """
        _check_streams(done_B, self.batch_size)
        return self._changed(lambda x: x.masked_fill(done_B.to(x.device)[:, None], 0.0))

    @classmethod
    def join(cls: type[State], parts: Sequence[State]) -> State:
        """Join neighbouring streams' states, in their order.

        Raises:
            ValueError: the parts leave a gap, overlap, or were filled to different lengths.
        """
        parts = sorted(parts, key=lambda part: part.first_column)
        column = parts[0].first_column
        filled = getattr(parts[0], "filled", None)
        for part in parts:
            start = (part.first_column, getattr(part, "filled", None))
            if start != (column, filled):
                expected = f"{start}, expected {(column, filled)}"
                raise ValueError(f"parts do not join: first column and filled are {expected}")
            column += part.batch_size
        has_other_tensors = [part.tensors().keys() != parts[0].tensors().keys() for part in parts]
        if any(has_other_tensors):  # some had a reset
            parts = [part.reset(torch.zeros(part.batch_size, dtype=torch.bool)) for part in parts]
        joined: dict[str, Any] = {}
        for name, first in parts[0].tensors().items():
            tensors = [part.tensors()[name] for part in parts]
            joined[name] = torch.cat(tensors, dim=_streams_axis(first))
        return replace(parts[0], **joined)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by field name."""
        return {name: x for name, x in self.state_dict().items() if isinstance(x, Tensor)}

    def _changed(self: State, change: Callable[[Tensor], Tensor]) -> State:
        changed: dict[str, Any] = {}
        for name, x in self.tensors().items():
            changed[name] = change(x)
        return replace(self, **changed)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        state = {}
        for f in fields(self):
            value = getattr(self, f.name)
            # `compare=False` marks fields that no checkpoint keeps, such as a loss.
            if f.compare and value is not None:
                state[f.name] = value
        return state

    @classmethod
    def from_state_dict(cls: type[State], state: dict[str, Any]) -> State:
        """Rebuild a state from `state_dict`."""
        return cls(**{f.name: state[f.name] for f in fields(cls) if f.name in state})


def _streams_axis(x: Tensor) -> int:
    return min(1, x.ndim - 1)


def _check_streams(done_B: Tensor, n_streams: int) -> None:
    if done_B.shape != (n_streams,):
        raise ValueError(f"done_B of shape {tuple(done_B.shape)} given for {n_streams} streams")


def after_reset(memory: Any, done_B: Flags, device: torch.device) -> Counts:
    """Return `in_document_B` for a memory of states, or of keys and values, after `reset`."""
    _check_streams(done_B, memory.batch_size)
    states_B = memory.in_document_B
    if states_B is None:
        states_B = states_of_document(memory, device)
    return states_B.masked_fill(done_B.to(device), -1)


def states_of_document(memory: Any, device: torch.device) -> Counts:
    """Return `in_document_B`, at least 0; a memory without any reset has one document."""
    if memory.in_document_B is not None:
        return memory.in_document_B.clamp(min=0)
    return torch.full(
        (memory.batch_size,),
        memory.filled,
        device=device,
    )


@dataclass
class Memory(CarriedState):
    """The layers' inputs at earlier tokens (paper §3.2).

    `states[n]` holds the inputs of `layers[n]`, as `Encoding.layer_input` returns them: the
    embedding after dropout for n = 0, else the output of `layers[n - 1]`.

    Args:
        states: the states, oldest first. M may be below the model's `memory_slots` (a memory that
            grows) or equal to it from the start (static shapes, for compilation).
        filled: how many newest states were written; older ones are never attended to.
        in_document_B: how many newest states each stream may attend to: they belong to its document or episode. -1
            where the next token begins one (`reset`). None if no stream was reset.
        keeps_gradient: whether `update` keeps the gradient of the states that it appends, so a later loss reaches them;
            otherwise they are stored without (SG in the paper). Training sets it for the segments in one step; it is in
            no checkpoint.
    """

    states: Float[Tensor, "N B M D"]
    filled: int
    in_document_B: Counts | None = None
    keeps_gradient: bool = field(default=False, compare=False, kw_only=True)

    def reset(self, done_B: Flags) -> Memory:
        """Let some streams start from scratch (`CarriedState.reset`). Their states stay, hidden."""
        return replace(self, in_document_B=after_reset(self, done_B, self.states.device))

    @property
    def length(self) -> int:
        """M, states per layer, written or not."""
        return self.states.shape[2]

    @property
    def batch_size(self) -> int:
        """B, streams."""
        return self.states.shape[1]

    def update(
        self,
        inputs: Sequence[Hidden],
        mem_len: int,
        ext_len: int = 0,
        bounds: StreamBounds | None = None,
    ) -> Memory:
        """Append one segment's layer inputs and keep the last `mem_len` states, without gradient (SG) by default.

            end = M + max(0, T - ext_len)        begin = max(0, end - mem_len)
            new = [memory ∘ inputs][begin:end]

        The last `ext_len` tokens are left out: they are fed again as the next segment's extended context.
        `torch.set_grad_enabled` is what stops the gradient into the memory.

        Args:
            inputs: the layers' inputs, in order.
            mem_len: longest memory.
            ext_len: extended context in tokens.
            bounds: where documents begin and streams end; padding does not enter the memory. With padding, streams fill
                at different speeds: `filled` is the largest number of states, `in_document_B` each stream's number.
        """
        T = inputs[0].shape[1]
        appended = max(0, T - ext_len)
        end = self.length + appended
        length = min(mem_len, end)
        padding_B = None
        span = length
        if bounds is not None and bounds.padding_B is not None:
            padding_B = bounds.padding_B.clamp(max=appended)
            span = end  # all states, since each stream drops the padding at its end
        n_new = min(appended, span)
        n_old = span - n_new
        keeps_gradient = self.keeps_gradient and torch.is_grad_enabled()
        with torch.set_grad_enabled(keeps_gradient):
            states = torch.stack([x[:, appended - n_new : appended] for x in inputs])
            if n_old > 0:
                old = self.states[:, :, self.length - n_old :].to(states.dtype)
                states = torch.cat([old, states], dim=2)
            if padding_B is not None:
                states = roll_streams(states, padding_B)[:, :, span - length :].contiguous()
        in_document_B = None
        if bounds is not None:
            before_B = states_of_document(self, states.device)
            in_document_B = bounds.states_in_document(self.length, appended, mem_len, before_B)
        filled = min(mem_len, self.filled + appended)
        return replace(self, states=states, filled=filled, in_document_B=in_document_B)
