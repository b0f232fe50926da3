"""Cached inference: the memory holds keys and values instead of the hidden states that they are projected from.

With hidden states as memory every segment projects all of them to keys and values again (paper §3.2), because
training changes the weights. In evaluation they stay as they are: the projections are kept, and W_{k,R} R of
every distance is computed once. A token costs its own projections and the products of the attention. Keys are kept
unrotated: an encoding that rotates them does so when they are read, by their distance then, which is exact in a stream
of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.layers import Dropout
from txl_lightning.model.memory import after_reset, states_of_document
from txl_lightning.model.positions import OwnKeys, VisibleKeys, attention_mask, shift, without_marks
from txl_lightning.model.transformer_xl import TransformerXL, TransformerXLLayer

GROWTH = 1.5  # length of a new buffer, relative to what it must hold at once
NOT_CALLED: dict[type, tuple[str, ...]] = {
    TransformerXL: ("forward", "score", "state_class", "start_memory", "next_memory", "checked", "visible"),
    TransformerXLLayer: ("forward",),
    Attention: ("forward", "heads"),
}
REUSE = 1.2  # a buffer of at least this relative length is kept, and its window moved to the front


def can_cache(model: object) -> TypeGuard[TransformerXL]:
    """Return whether `CachedTransformerXL` takes a model: a Transformer-XL that does not say that it `cannot`.

    It does not call what `NOT_CALLED` names, so a model that overrides one of these is none either.
    """
    if not isinstance(model, TransformerXL) or "cached inference" in model.cannot:
        return False
    layer: Any = model.layers[0]
    kinds: dict[type, type] = {TransformerXL: type(model), TransformerXLLayer: type(layer)}
    kinds[Attention] = type(layer.attention)
    return all(getattr(kinds[of], name) is getattr(of, name) for of, names in NOT_CALLED.items() for name in names)


@dataclass
class KeyValueMemory:
    """Keys and values of the last `mem_len` tokens, in place of states.

        buffer   [ forgotten | filled: the memory | space for a segment |         ]
                              ^ begin

    What a segment's states are projected to is written after the memory, so that attention reads both as one view;
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

    def reset(self, done_B: Bool[Tensor, " B"]) -> KeyValueMemory:
        """Let some streams start from scratch (`CarriedState.reset`); this memory cannot be used again."""
        memory = self.spend()
        memory.in_document_B = after_reset(self, done_B, memory._buffer().device)
        return memory

    def copy(self) -> KeyValueMemory:
        """Return a second memory of the same content, to continue twice from one place (`select`)."""
        return self.select(range(self.batch_size))

    def select(self, indices: Int[Tensor, " S"] | Sequence[int]) -> KeyValueMemory:
        """Return a memory of the streams with these indices, as `CarriedState.select`; this one is not spent.

        Raises:
            ValueError: the memory was spent before.
        """
        indices_S = torch.as_tensor(indices, device=self._buffer().device)
        buffer = self._window(self._buffer()).index_select(-3, indices_S).flatten(-4, -3)
        in_document_B = None if self.in_document_B is None else self.in_document_B[indices_S]
        return replace(self, buffer_NPXCE=buffer, begin=0, batch_size=len(indices_S), in_document_B=in_document_B)

    def restart(self, start: KeyValueMemory) -> None:
        """Give the streams that were reset the memory before a first token, of one stream and the same length."""
        assert self.in_document_B is not None
        self._window(self._buffer())[..., self.in_document_B < 0, :, :] = start._window(start._buffer())
        self.in_document_B = None

    def _window(self, buffer: Tensor, T: int = 0) -> Float[Tensor, "*_ H B K E"]:
        """Return the memory, and T places after it, as a view with heads and streams apart."""
        return buffer[..., self.begin : self.begin + self.filled + T, :].unflatten(-3, (-1, self.batch_size))

    @torch.no_grad()
    def make_room(self, T: int) -> None:
        """Ensure that T places follow the memory: move it to the front, or into a longer buffer."""
        buffer, needed = self._buffer(), self.filled + T
        capacity = buffer.shape[3]
        if self.begin + needed <= capacity:
            return
        length = int(GROWTH * needed) if capacity < REUSE * needed else capacity
        self.buffer_NPXCE, self.begin = self._moved(buffer, length), 0

    def _moved(self, buffer: Tensor, length: int) -> Tensor:
        """Return a buffer of this length, the same one if it has it, with the memory at its front."""
        moved = buffer
        if buffer.shape[-2] != length:
            moved = buffer.new_empty((*buffer.shape[:-2], length, buffer.shape[-1]))
        for old, new in zip(buffer, moved, strict=True):
            window = old[..., self.begin : self.begin + self.filled, :]
            new[..., : self.filled, :] = window.clone() if moved is buffer else window  # source and target may overlap
        return moved

    @torch.no_grad()
    def write(self, n: int, kv_PHBTE: Float[Tensor, "P H B T E"]) -> Float[Tensor, "P H B K E"]:
        """Write a segment's projections of layer n after the memory; return those of all K = M + T as views.

        Raises:
            ValueError: they have another type than the memory.
        """
        buffer, (P, H, B, T, E) = self._buffer(), kv_PHBTE.shape
        if kv_PHBTE.dtype != buffer.dtype:
            raise ValueError(f"keys and values of {kv_PHBTE.dtype} given to a memory of {buffer.dtype}")
        window = slice(self.begin, self.begin + self.filled + T)
        kv_PHBKE = buffer[n, :, :, window].view(P, H, B, self.filled + T, E)
        kv_PHBKE[:, :, :, self.filled :] = kv_PHBTE
        return kv_PHBKE

    @torch.no_grad()
    def advance(self, T: int, config: TransformerXLConfig, own: OwnKeys | None = None) -> None:
        """Add the T written tokens but the last `ext_len`; keep the last `mem_len` tokens.

        The padding of a stream is not added: its tokens are moved over it.
        """
        appended = max(0, T - config.ext_len)
        if own is not None and own.padding_B is not None:
            for of_layer in self._buffer():
                window = self._window(of_layer, appended)
                window.copy_(shift(window, own.padding_B.clamp(max=appended)))
        if own is not None and self.in_document_B is not None:
            self.in_document_B = own.states(self.filled, appended, config.mem_len, self.in_document_B)
        end = self.filled + appended
        self.filled = min(config.mem_len, end)
        self.begin += end - self.filled

    def _buffer(self) -> Tensor:
        if self.buffer_NPXCE is None:
            raise ValueError("this memory is spent: pass the one that the model returned for it, or copy() it before")
        return self.buffer_NPXCE


class CachedTransformerXL(ScoringModel):
    """Model with its present weights, for evaluation and generation; computes the same function as the model.

        cached = CachedTransformerXL(model, mem_len=3800)
        nll, memory = cached.score(tokens, targets, memory)

    Make a new one for every evaluation: it raises if the weights, their device or autocast changed after it was
    made. `weights_of` lists the changes that it cannot detect, such as a step of a fused optimizer. Each
    memory can be given to a call once (`KeyValueMemory`).

    Args:
        model: model whose weights are used; it is not changed.
        lengths: other values of its lengths (see `TransformerXL.with_lengths`).

    Raises:
        OptionError: a length is not allowed, or the model cannot be cached (`can_cache`).
        TypeError: a name is none of these.
    """

    def __init__(self, model: TransformerXL, **lengths: Any) -> None:
        name, why = type(model).__name__, model.cannot.get("cached inference", "it has no keys and values to keep")
        require(can_cache(model), "model", name, f"cannot be cached, use the model itself: {why}")
        self.model = model.with_lengths(**lengths)
        self.config = self.model.config
        self.takes_lengths = self.model.takes_lengths
        self.losses, self.log_probabilities = self.model.losses, self.model.log_probabilities  # type: ignore[method-assign]
        self._device = next(model.parameters()).device.type
        self._tables = [module._parameters for module in model.modules() if module._parameters]
        self._weights = weights_of(self._tables, self._device)
        self._distances = _Distances(self.model)
        self._dropouts = [module for module in model.modules() if isinstance(module, Dropout) and module.p]

    def _check_weights(self) -> None:
        """Raise `RuntimeError` if a parameter or autocast changed."""
        found, before = weights_of(self._tables, self._device), self._weights
        if found != before:
            changed = "the weights" if found[0] == before[0] else f"autocast ({before[0]} to {found[0]})"
            raise RuntimeError(f"{changed} changed after cached inference was set up; make a new CachedTransformerXL")

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters of the model."""
        return self.model.parameters()

    def with_lengths(self, **lengths: Any) -> CachedTransformerXL:
        """Return a new one on the model's present weights with other lengths (`TransformerXL.with_lengths`)."""
        return CachedTransformerXL(self.model, **lengths)

    @torch.no_grad()
    def start_memory(self, batch_size: int) -> KeyValueMemory:
        """Return the memory before the first token of B streams: empty, or projections of `mem_len` zero states.

        Raises:
            RuntimeError: the weights changed.
        """
        self._check_weights()
        zero_11D = next(self.parameters()).new_zeros(1, 1, self.config.d_model)
        layers: Any = self.model.layers
        inputs = [(layer.attention, layer.attention_input(zero_11D)) for layer in layers]
        kv_NPHE = torch.stack([attention.project(input_11D)[1][:, :, 0, 0] for attention, input_11D in inputs])
        length = self.config.mem_len if self.config.memory_start == "zeros" else 0
        N, P, H, E = kv_NPHE.shape
        buffer = kv_NPHE[:, :, :, None, None].expand(N, P, H, batch_size, length, E).flatten(2, 3)
        memory = KeyValueMemory(buffer.contiguous(), batch_size, made_by=self, filled=length)
        if self.config.memory_reset == "document":
            memory.in_document_B = torch.zeros(batch_size, dtype=torch.int64, device=buffer.device)
        return memory

    def __call__(
        self,
        tokens_BT: Int[Tensor, "B T"] | None = None,
        memory: KeyValueMemory | None = None,
        n_last: int | None = None,
        *,
        inputs_BTD: Float[Tensor, "B T D"] | None = None,
        lengths_B: Int[Tensor, " B"] | None = None,
    ) -> tuple[Float[Tensor, "B Q D"], KeyValueMemory]:
        """Return the hidden states of the last layer and the memory for the next segment.

        Args:
            tokens_BT: T consecutive tokens of B streams, extended context included.
            memory: returned by the previous call; None for the start of the streams.
            n_last: Q, the number of tokens, counted from the last, whose states are returned; None for all.
            inputs_BTD: what takes the place of the scaled embeddings, instead of tokens.
            lengths_B: as for the model.

        Raises:
            RuntimeError: gradients are enabled, dropout is on, or the weights changed.
            ValueError: the memory was given before, has other streams, or is another object's.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("cached inference has no gradients; call it under torch.no_grad() or train the model")
        if any(dropout.training for dropout in self._dropouts):
            raise RuntimeError("cached inference has no dropout; call eval() on the model")
        self._check_weights()
        model, config = self.model, self.config
        marked_BT = tokens_BT if config.memory_reset == "document" else None
        hidden_BTD = model.embed(tokens_BT if marked_BT is None else without_marks(marked_BT), inputs_BTD, lengths_B)
        B, T = hidden_BTD.shape[:2]
        if memory is None:
            memory = self.start_memory(B)
        if memory.batch_size != B:
            raise ValueError(f"memory of {memory.batch_size} streams given with tokens of {B} streams")
        if memory.made_by is not self:
            raise ValueError("the memory was made by another CachedTransformerXL")
        if lengths_B is not None:
            memory = memory.reset(torch.zeros_like(lengths_B, dtype=torch.bool))  # counts the states of each stream
        memory = memory.spend()
        memory.make_room(T)
        if memory.in_document_B is not None and config.memory_start == "zeros":
            memory.restart(self.start_memory(1))
        own = None
        if memory.in_document_B is not None or lengths_B is not None:
            own = OwnKeys.of(marked_BT, lengths_B, T, memory.filled, states_of_document(memory, hidden_BTD.device))
        layers: Any = model.layers
        hidden_BTD = model.encoding.at_start(hidden_BTD, config.clamp_len, own)
        positions, mask_TK = self._distances.of_segment(T, memory.filled, hidden_BTD)
        mask_TK = mask_TK if own is None else own.hide_others(mask_TK)
        visible = VisibleKeys(mask_TK, sees_memory=config.attention_len is None)
        for n, layer in enumerate(layers):
            input_BTD = model.encoding.at_layer(n, hidden_BTD, own)
            # The last layer needs queries of the last tokens only (see `TransformerXL.forward`).
            Q = T if n_last is None or n < config.n_layer - 1 else n_last
            before_BTD, queries_BTD = input_BTD.split([T - Q, Q], dim=1)
            attention, of_queries = layer.attention, visible._replace(mask_TK=mask_TK[..., T - Q :, :])
            segment_BTD, past_BTD = layer.attention_input(queries_BTD), layer.attention_input(before_BTD)
            q_HBTE, kv_PHBTE = attention.project(segment_BTD, past_BTD)
            heads_HBTE = attention.attend(q_HBTE, memory.write(n, kv_PHBTE), positions[n], of_queries)
            hidden_BTD = layer.after_attention(queries_BTD, attention.combine_heads(heads_HBTE))
        memory.advance(T, config, own)
        return hidden_BTD, memory


class _Distances:
    """Projected positions and masks for the longest K so far; those of fewer keys are views on them.

    Rows and columns are ordered by falling distance, so that those of K keys are the last ones.
    """

    def __init__(self, model: TransformerXL) -> None:
        self.model = model
        self.positions: list[LayerPositions] = []
        self.n_keys = -1
        self.mask_TK: Tensor | None = None

    def of_segment(self, T: int, M: int, like: Tensor) -> tuple[list[LayerPositions], Float[Tensor, "T K"]]:
        """Return positions for every layer, and the mask, of T tokens after a memory of M."""
        config, K = self.model.config, M + T
        full = config.memory_slots <= M  # K stays the same from now on: a table of its own is read faster than a view
        if self.n_keys < K or (full and self.n_keys != K):
            self.n_keys, self.mask_TK = K if full else max(K, min(2 * K, config.memory_slots + T)), None
            positions = self.model.positions(self.n_keys, like)
            layers: Any = self.model.layers
            self.positions = []
            for layer, of_layer in zip(layers, positions, strict=True):
                r_HSE = layer.attention.distance_vectors(of_layer)
                r_HSE = None if r_HSE is None else r_HSE.contiguous()
                self.positions.append(of_layer._replace(sinusoids_SD=None, table_HSE=r_HSE))
        if self.mask_TK is None or len(self.mask_TK) != T:
            longest = self.n_keys - T
            self.mask_TK = attention_mask(T, longest, longest, config.attention_len, like)
        return [positions.up_to(K) for positions in self.positions], self.mask_TK[:, self.n_keys - K :]


def weights_of(tables: list[dict[str, Any]], device: str) -> tuple[torch.dtype | None, list[tuple[int, int]]]:
    """Return the type of autocast, and the address and the number of changes in place of every parameter.

    Seen are an optimizer step, `load_state_dict`, replaced parameters, another device or type. Not seen, because torch
    does not count them: the step of an optimizer with `fused=True`, and writes through `parameter.data`.

    Args:
        tables: torch's own tables of parameters, `module._parameters`, which show a replaced one.
        device: type of the device.
    """
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    parameters = (p for table in tables for p in table.values() if p is not None)
    weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
    return torch.get_autocast_dtype(device) if on else None, weights
