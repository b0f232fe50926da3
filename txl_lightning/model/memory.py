"""Memory of segment recurrence: a value that is passed along, never a buffer of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txl_lightning.model.positions import OwnKeys, shift

State = TypeVar("State", bound="CarriedState")


@dataclass
class CarriedState:
    """Base class of what a model carries from one segment to the next: tensors [N, B, …] or [B].

    They carry no gradient from one training step to the next.

    It is a value: a model returns a new one and changes none. (Not a frozen dataclass: Lightning Fabric sets the fields
    of a copy.) It must not become a registered buffer: DDP would overwrite it with that of rank 0, and weight averaging
    would average it.

    Args:
        first_column: index of the first stream in the global batch; named as in checkpoints.
    """

    first_column: int = field(default=0, kw_only=True)

    @property
    def batch_size(self) -> int:
        """B, streams."""
        raise NotImplementedError

    def streams(self: State, start: int, stop: int) -> State:
        """Return the state of streams `start` to `stop` (exclusive), counted within this state."""
        part = self._changed(lambda x: x.narrow(_streams_axis(x), start, stop - start))
        return replace(part, first_column=self.first_column + start)

    def select(self: State, indices: Int[Tensor, " S"] | Sequence[int]) -> State:
        """Return the state of the streams with these indices, in their order; a stream may be left out or repeated."""
        return self._changed(lambda x: x.index_select(_streams_axis(x), torch.as_tensor(indices, device=x.device)))

    def to(self: State, device: torch.device | str) -> State:
        """Copy the state to a device."""
        return self._changed(lambda x: x.to(device))

    def reset(self: State, done_B: Bool[Tensor, " B"]) -> State:
        """Let the streams where `done_B` is true start from scratch: their next token is the first of an episode.

        Such a stream computes what it computes after `start_memory`; all others are unchanged bit by bit. This one sets
        tensors [N, B, D] to zero; a state with others overrides it.

        Args:
            done_B: on any device.

        Raises:
            ValueError: it does not have one value for each stream.
        """
        return self._changed(lambda x: x.masked_fill(_one_each(done_B, self.batch_size).to(x.device)[:, None], 0.0))

    @classmethod
    def join(cls: type[State], parts: Sequence[State]) -> State:
        """Join the states of neighbouring streams, in their order.

        Raises:
            ValueError: the parts leave a gap, overlap, or were filled to different lengths.
        """
        parts = sorted(parts, key=lambda part: part.first_column)
        column, filled = parts[0].first_column, getattr(parts[0], "filled", None)
        for part in parts:
            found, expected = (part.first_column, getattr(part, "filled", None)), (column, filled)
            if found != expected:
                raise ValueError(f"parts do not join: first column and filled are {found}, expected {expected}")
            column += part.batch_size
        if len({frozenset(part._tensors()) for part in parts}) > 1:  # some had a reset
            parts = [part.reset(torch.zeros(part.batch_size, dtype=torch.bool)) for part in parts]
        parts_of_tensors = [part._tensors() for part in parts]
        joined = {
            name: torch.cat([tensors[name] for tensors in parts_of_tensors], dim=_streams_axis(x))
            for name, x in parts_of_tensors[0].items()
        }
        return replace(parts[0], **joined)  # type: ignore[arg-type]

    def _tensors(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.state_dict().items() if isinstance(x, Tensor)}

    def _changed(self: State, change: Callable[[Tensor], Tensor]) -> State:
        return replace(self, **{name: change(x) for name, x in self._tensors().items()})  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        # `compare=False` marks fields that no checkpoint keeps, such as a loss.
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_state_dict(cls: type[State], state: dict[str, Any]) -> State:
        """Rebuild a state from `state_dict`."""
        return cls(**{f.name: state[f.name] for f in fields(cls) if f.name in state})


def _streams_axis(x: Tensor) -> int:
    return min(1, x.ndim - 1)


def _one_each(done_B: Tensor, n_streams: int) -> Tensor:
    if done_B.shape != (n_streams,):
        raise ValueError(f"done_B of shape {tuple(done_B.shape)} given for {n_streams} streams")
    return done_B


def after_reset(memory: Any, done_B: Bool[Tensor, " B"], device: torch.device) -> Int[Tensor, " B"]:
    """Return `in_document_B` of a memory of states, or of keys and values, after `reset`."""
    states_B = states_of_document(memory, device) if memory.in_document_B is None else memory.in_document_B
    return states_B.masked_fill(_one_each(done_B, memory.batch_size).to(device), -1)


def states_of_document(memory: Any, device: torch.device) -> Int[Tensor, " B"]:
    """Return `in_document_B`, at least 0, of such a memory; one that was not reset so far is of one document."""
    if memory.in_document_B is not None:
        return memory.in_document_B.clamp(min=0)
    return torch.full((memory.batch_size,), memory.filled, device=device)


@dataclass
class Memory(CarriedState):
    """Inputs of the layers at earlier tokens (paper §3.2).

    `states[n]` holds the inputs of `layers[n]`, as `Encoding.layer_input` returns them: the embedding after dropout for
    n = 0, else the output of `layers[n - 1]`.

    Args:
        states: the states, oldest first. M may be below the model's `memory_slots` (a memory that grows) or equal to it
            from the start (static shapes, for compilation).
        filled: number of states, counted from the newest, that were written; the others are never attended to.
        in_document_B: a count: how many of the newest states belong to each stream's document or episode; -1 where the
            next token begins one (`reset`). None if no stream was reset.
        keeps_gradient: whether the next memory keeps the gradient of its states, so that a later loss
            reaches them; otherwise they are stored without (SG in the paper). Training sets it for the segments of one
            step; it is in no checkpoint.
    """

    states: Float[Tensor, "N B M D"]
    filled: int
    in_document_B: Int[Tensor, " B"] | None = None
    keeps_gradient: bool = field(default=False, compare=False, kw_only=True)

    def reset(self, done_B: Bool[Tensor, " B"]) -> Memory:
        """Let some streams start from scratch; see `CarriedState.reset`. Their states stay, and are hidden."""
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
        inputs: Sequence[Float[Tensor, "B T D"]],
        mem_len: int,
        ext_len: int = 0,
        own: OwnKeys | None = None,
    ) -> Memory:
        """Append one segment's layer inputs and keep the last `mem_len` states, by default without gradient (SG).

            end = M + max(0, T - ext_len)        begin = max(0, end - mem_len)
            new = [memory ∘ inputs][begin:end]

        Without padding, `kept` of the `length` = end - begin states are old and `taken` new. The last `ext_len` tokens
        are left out: they are fed again as extended context of the next segment.

        Args:
            inputs: inputs of the layers, in their order.
            mem_len: longest memory.
            ext_len: tokens of extended context.
            own: where streams begin and end, if documents are told apart or streams have padding, which does not enter
                it; then only `in_document_B` counts the states of a stream.
        """
        appended = max(0, inputs[0].shape[1] - ext_len)
        length = min(mem_len, self.length + appended)
        padding_B = None if own is None or own.padding_B is None else own.padding_B.clamp(max=appended)
        span = length if padding_B is None else self.length + appended
        taken = min(appended, span)
        kept = span - taken
        with torch.set_grad_enabled(self.keeps_gradient and torch.is_grad_enabled()):
            states = torch.stack([x[:, appended - taken : appended] for x in inputs])
            if kept:
                old = self.states[:, :, self.length - kept :].to(states.dtype)
                states = torch.cat([old, states], dim=2)
            if padding_B is not None:
                states = shift(states, padding_B)[:, :, span - length :].contiguous()
        in_document_B = None
        if own is not None:
            in_document_B = own.states(self.length, appended, mem_len, states_of_document(self, states.device))
        filled = min(mem_len, self.filled + appended)
        return replace(self, states=states, filled=filled, in_document_B=in_document_B)
