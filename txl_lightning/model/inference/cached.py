"""Cached inference: the memory holds keys and values instead of the hidden states they come from.

With hidden states as memory every segment projects all of them to keys and values again (paper §3.2), because training
changes the weights. In evaluation the weights stay as they are: the projections are kept, and W_{k,R} R is computed
once for every distance. A token costs only its projections and the attention's products. Keys are kept unrotated: an
encoding that rotates them does so when they are read, by their distance then. This is exact in a stream with any
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import require
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.layers import Dropout
from txl_lightning.model.memory import after_reset
from txl_lightning.model.positions import (
    StreamBounds,
    VisibleKeys,
    attention_mask,
    roll_streams,
)
from txl_lightning.model.shapes import Counts, Flags, Hidden, KeysValues, Mask, Requested, Tokens
from txl_lightning.model.transformer_xl import TransformerXL

GROWTH = 1.5  # length of a new buffer, relative to what it must hold at once
# a buffer with at least this relative length is kept, and its window moved to the front
REUSE = 1.2


def can_cache(model: object) -> TypeGuard[TransformerXL]:
    """Return whether `CachedTransformerXL` takes a model (`TransformerXL.cannot`)."""
    return isinstance(model, TransformerXL) and "cached inference" not in model.cannot


@dataclass
class KeyValueMemory:
    """Keys and values for the last `mem_len` tokens, instead of states.

        buffer   [ forgotten | filled: the memory | space for a segment |         ]
                              ^ begin

    A segment's keys and values are written after the memory, so attention reads both as one view; then the window
    moves. At the buffer's end the memory is moved to its front. Moves are so rare that their cost per token is
    negligible.

    Unlike `Memory` this is not a value: the model writes into the buffer and passes it to the
    memory that it returns. A memory can therefore be given to a model once; a second use raises,
    and `copy` avoids it.

    Args:
        buffer_NPXCE: keys and values (P = 2) or values alone for N layers, X = H·B heads of streams and C places; None
            once the memory was given to a model.
        batch_size: B, streams.
        made_by: object whose memory this is.
        begin: the window's first place.
        filled: number of states that it holds.
        in_document_B: how many of them belong to each stream's present document (see `Memory`).
    """

    buffer_NPXCE: Tensor | None
    batch_size: int
    made_by: object
    begin: int = 0
    filled: int = 0
    in_document_B: Counts | None = None

    @property
    def length(self) -> int:
        """M, states per layer."""
        return self.filled

    def spend(self) -> KeyValueMemory:
        """Move the buffer to a new memory; this one cannot be used again.

        Raises:
            ValueError: the memory was spent before.
        """
        self._buffer()
        successor = replace(self)
        self.buffer_NPXCE = None
        return successor

    def reset(self, done_B: Flags) -> KeyValueMemory:
        """Let some streams start from scratch (`CarriedState.reset`); this memory is spent."""
        memory = self.spend()
        memory.in_document_B = after_reset(self, done_B, memory._buffer().device)
        return memory

    def copy(self) -> KeyValueMemory:
        """Return a second memory with the same content, to continue twice from one place (`select`)."""
        return self.select(range(self.batch_size))

    def select(self, indices: Int[Tensor, " S"] | Sequence[int]) -> KeyValueMemory:
        """Return a memory with the streams at these indices (`CarriedState.select`); this one stays.

        Raises:
            ValueError: the memory was spent before.
        """
        indices_S = torch.as_tensor(indices, device=self._buffer().device)
        window_NPHBKE = self._window(self._buffer())
        buffer_NPXKE = window_NPHBKE.index_select(-3, indices_S).flatten(-4, -3)
        in_document_B = self.in_document_B
        if in_document_B is not None:
            in_document_B = in_document_B[indices_S]
        return replace(
            self,
            buffer_NPXCE=buffer_NPXKE,
            begin=0,
            batch_size=len(indices_S),
            in_document_B=in_document_B,
        )

    def restart(self, start: KeyValueMemory) -> None:
        """Give the streams that were reset the memory before a first token; it has one stream."""
        assert self.in_document_B is not None
        is_new_B = self.in_document_B < 0
        self._window(self._buffer())[..., is_new_B, :, :] = start._window(start._buffer())
        self.in_document_B = None

    def _window(
        self,
        buffer: Tensor,
        T: int = 0,
    ) -> Float[Tensor, "*_ H B K E"]:
        """Return the memory, and T places after it, as a view with heads and streams apart."""
        end = self.begin + self.filled + T
        return buffer[..., self.begin : end, :].unflatten(-3, (-1, self.batch_size))

    @torch.no_grad()
    def make_room(self, T: int) -> None:
        """Ensure that T places follow the memory: move it to the front, or into a longer buffer."""
        buffer = self._buffer()
        needed = self.filled + T
        capacity = buffer.shape[3]
        if self.begin + needed <= capacity:
            return
        target = buffer
        if capacity < REUSE * needed:
            N, P, X, _, E = buffer.shape
            target = buffer.new_empty((N, P, X, int(GROWTH * needed), E))
        end = self.begin + self.filled
        for n in range(len(buffer)):
            # A copy, because source and target may overlap.
            target[n, :, :, : self.filled] = buffer[n, :, :, self.begin : end].clone()
        self.buffer_NPXCE = target
        self.begin = 0

    @torch.no_grad()
    def write(
        self,
        n: int,
        kv_PHBTE: Float[Tensor, "P H B T E"],
    ) -> KeysValues:
        """Write layer n's projections of a segment after the memory; return all K = M + T as views.

        Raises:
            ValueError: they have another type than the memory.
        """
        buffer = self._buffer()
        if kv_PHBTE.dtype != buffer.dtype:
            types = f"{kv_PHBTE.dtype} given to a memory of {buffer.dtype}"
            raise ValueError(f"keys and values of {types}")
        kv_PHBKE = self._window(buffer[n], kv_PHBTE.shape[3])
        kv_PHBKE[:, :, :, self.filled :] = kv_PHBTE
        return kv_PHBKE

    @torch.no_grad()
    def advance(
        self,
        T: int,
        config: TransformerXLConfig,
        bounds: StreamBounds | None,
    ) -> None:
        """Add the T written tokens but the last `ext_len`; keep the last `mem_len` tokens.

        A stream's padding is not added: its tokens are moved over it.
        """
        appended = max(0, T - config.ext_len)
        if bounds is not None and bounds.padding_B is not None:
            padding_B = bounds.padding_B.clamp(max=appended)
            for layer_PXCE in self._buffer():
                window = self._window(layer_PXCE, appended)
                window.copy_(roll_streams(window, padding_B))
        if bounds is not None and self.in_document_B is not None:
            self.in_document_B = bounds.states_in_document(
                self.filled, appended, config.mem_len, self.in_document_B
            )
        end = self.filled + appended
        self.filled = min(config.mem_len, end)
        self.begin += end - self.filled

    def _buffer(self) -> Tensor:
        if self.buffer_NPXCE is None:
            advice = "pass the one that the model returned for it, or copy() it before"
            raise ValueError(f"this memory is spent: {advice}")
        return self.buffer_NPXCE


class CachedTransformerXL(ScoringModel):
    """Model with its present weights, for evaluation and generation; it computes the same function.

        cached = CachedTransformerXL(model, mem_len=3800)
        nll, memory = cached.score(tokens, targets, memory)

    Make a new one for every evaluation: it raises if the weights, their device or autocast changed after it was made.
    `weights_of` lists the changes that it cannot detect, such as a fused optimizer's step. Each memory can be given to
    a call once (`KeyValueMemory`).

    Args:
        model: model whose weights are used; it is not changed.
        lengths: other values for its lengths (see `TransformerXL.with_lengths`).

    Raises:
        OptionError: a length is not allowed, or the model cannot be cached (`can_cache`).
        TypeError: unknown name.
    """

    def __init__(self, model: TransformerXL, **lengths: Any) -> None:
        cannot = getattr(model, "cannot", {})
        reason = cannot.get("cached inference", "it has no keys and values to keep")
        allowed = f"cannot be cached, use the model itself: {reason}"
        require(
            can_cache(model),
            "model",
            type(model).__name__,
            allowed,
        )
        self.model = model.with_lengths(**lengths)
        self.config = self.model.config
        self.takes_lengths = self.model.takes_lengths
        self.losses = self.model.losses  # type: ignore[method-assign]
        self.log_probabilities = self.model.log_probabilities  # type: ignore[method-assign]
        self._device = next(model.parameters()).device.type
        self._tables: list[dict[str, Any]] = []
        self._dropouts: list[Dropout] = []
        for module in model.modules():
            if module._parameters:
                self._tables.append(module._parameters)
            if isinstance(module, Dropout) and module.p:
                self._dropouts.append(module)
        self._weights = weights_of(self._tables, self._device)
        self._distances = _Distances(self.model)

    def _check_weights(self) -> None:
        """Raise `RuntimeError` if a parameter or autocast changed."""
        weights = weights_of(self._tables, self._device)
        if weights == self._weights:
            return
        before = self._weights[0]
        now = weights[0]
        changed = "the weights"
        if now != before:
            changed = f"autocast ({before} to {now})"
        advice = "make a new CachedTransformerXL"
        raise RuntimeError(f"{changed} changed after cached inference was set up; {advice}")

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the model's parameters."""
        return self.model.parameters()

    def with_lengths(self, **lengths: Any) -> CachedTransformerXL:
        """Return a new one on the model's present weights with other lengths."""
        return CachedTransformerXL(self.model, **lengths)

    @torch.no_grad()
    def start_memory(self, batch_size: int) -> KeyValueMemory:
        """Return the memory before the first token: empty, or projections of `mem_len` zero states.

        Raises:
            RuntimeError: the weights changed.
        """
        self._check_weights()
        zero_11D = next(self.parameters()).new_zeros(
            1,
            1,
            self.config.d_model,
        )
        projected: list[Tensor] = []
        for layer in self._layers():
            _, kv_PH11E = layer.attention.project(layer.attention_input(zero_11D))
            projected.append(kv_PH11E)
        kv_NPH11E = torch.stack(projected)
        N, P, H, _, _, E = kv_NPH11E.shape
        length = self.config.mem_len if self.config.memory_start == "zeros" else 0
        buffer_NPXCE = kv_NPH11E.expand(N, P, H, batch_size, length, E).flatten(2, 3).contiguous()
        memory = KeyValueMemory(buffer_NPXCE, batch_size, made_by=self, filled=length)
        if self.config.memory_reset == "document":
            device = buffer_NPXCE.device
            memory.in_document_B = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return memory

    def _layers(self) -> Any:
        return self.model.layers

    def __call__(
        self,
        tokens_BT: Tokens | None = None,
        memory: KeyValueMemory | None = None,
        n_last: int | None = None,
        *,
        inputs_BTD: Hidden | None = None,
        lengths_B: Counts | None = None,
    ) -> tuple[Requested, KeyValueMemory]:
        """Return the last layer's hidden states and the memory for the next segment.

        Args:
            tokens_BT: T consecutive tokens in B streams, including extended context.
            memory: returned by the previous call; None at the streams' start.
            n_last: Q, how many last tokens' states are returned; None for all.
            inputs_BTD: used instead of tokens and their scaled embeddings.
            lengths_B: as for the model.

        Raises:
            RuntimeError: gradients are enabled, dropout is on, or the weights changed.
            ValueError: the memory was given before, has other streams, or is another object's.
        """
        if torch.is_grad_enabled():
            advice = "call it under torch.no_grad() or train the model"
            raise RuntimeError(f"cached inference has no gradients; {advice}")
        if any(dropout.training for dropout in self._dropouts):
            raise RuntimeError("cached inference has no dropout; call eval() on the model")
        self._check_weights()
        model = self.model
        hidden_BTD = model.embed(tokens_BT, inputs_BTD, lengths_B)
        B, T = hidden_BTD.shape[:2]
        memory = self._memory_before(memory, B, T, lengths_B)
        bounds = model.stream_bounds(tokens_BT, lengths_B, memory, hidden_BTD)
        hidden_BTD = model.encoding.embed_streams(
            hidden_BTD,
            self.config.clamp_len,
            bounds,
        )
        positions, mask_TK = self._distances.of_segment(T, memory.filled, hidden_BTD)
        if bounds is not None:
            mask_TK = bounds.hide_other_documents(mask_TK)
        visible = VisibleKeys(mask_TK, sees_memory=self.config.attention_len is None)
        for n, layer in enumerate(self._layers()):
            input_BTD = model.encoding.layer_input_of_streams(n, hidden_BTD, bounds)
            # In the last layer, compute only the requested tokens.
            Q = T
            if n_last is not None and n == self.config.n_layer - 1:
                Q = n_last
            before_BTD, queries_BTD = input_BTD.split([T - Q, Q], dim=1)
            visible_Q = visible._replace(mask_TK=mask_TK[..., T - Q :, :])
            q_HBQE, kv_PHBTE = layer.attention.project(
                layer.attention_input(queries_BTD), layer.attention_input(before_BTD)
            )
            kv_PHBKE = memory.write(n, kv_PHBTE)
            heads_HBQE = layer.attention.attend(
                q_HBQE,
                kv_PHBKE,
                positions[n],
                visible_Q,
            )
            attended_BQD = layer.attention.combine_heads(heads_HBQE)
            hidden_BTD = layer.after_attention(queries_BTD, attended_BQD)
        memory.advance(T, self.config, bounds)
        return hidden_BTD, memory

    def _memory_before(
        self, memory: KeyValueMemory | None, B: int, T: int, lengths_B: Tensor | None
    ) -> KeyValueMemory:
        """Return the memory that a segment with B streams and T tokens reads, with room for the tokens."""
        if memory is None:
            memory = self.start_memory(B)
        if memory.batch_size != B:
            streams = f"{memory.batch_size} streams given with tokens for {B} streams"
            raise ValueError(f"memory of {streams}")
        if memory.made_by is not self:
            raise ValueError("the memory was made by another CachedTransformerXL")
        if lengths_B is not None:
            # A reset without any stream makes the memory count each stream's states.
            memory = memory.reset(torch.zeros_like(lengths_B, dtype=torch.bool))
        memory = memory.spend()
        memory.make_room(T)
        if memory.in_document_B is not None and self.config.memory_start == "zeros":
            memory.restart(self.start_memory(1))
        return memory


class _Distances:
    """Projected positions and masks for the longest K so far, and once the memory is full for exactly this K.

    Rows and columns are ordered by falling distance, so a shorter K uses a view on the last ones.
    """

    def __init__(self, model: TransformerXL) -> None:
        self.model = model
        self.positions: list[LayerPositions] = []
        self.n_keys = -1
        self.mask_TK: Tensor | None = None

    def of_segment(
        self,
        T: int,
        M: int,
        like: Tensor,
    ) -> tuple[list[LayerPositions], Mask]:
        """Return positions for every layer, and the mask, for T tokens after a memory with M."""
        slots = self.model.config.memory_slots
        K = M + T
        # Once the memory is full K is constant, and a table with K rows is read faster than a view.
        if slots <= M and self.n_keys != K:
            self._project(K, like)
        elif self.n_keys < K:
            self._project(max(K, min(2 * K, slots + T)), like)
        if self.mask_TK is None or len(self.mask_TK) != T:
            n_memory = self.n_keys - T
            attention_len = self.model.config.attention_len
            self.mask_TK = attention_mask(T, n_memory, n_memory, attention_len, like)
        positions = [layer_positions.up_to(K) for layer_positions in self.positions]
        return positions, self.mask_TK[:, self.n_keys - K :]

    def _project(self, n_keys: int, like: Tensor) -> None:
        """Compute the positions for `n_keys` keys, with every layer's W_{k,R} R."""
        self.n_keys = n_keys
        self.mask_TK = None
        self.positions = []
        layers: Any = self.model.layers
        for layer, positions in zip(
            layers,
            self.model.positions(n_keys, like),
            strict=True,
        ):
            r_HSE = layer.attention.distance_vectors(positions)
            if r_HSE is not None:
                r_HSE = r_HSE.contiguous()
            self.positions.append(positions._replace(sinusoids_SD=None, table_HSE=r_HSE))


def weights_of(
    tables: list[dict[str, Any]], device: str
) -> tuple[torch.dtype | None, list[tuple[int, int]]]:
    """Return autocast's type, and each parameter's address and number of changes in place.

    They change with an optimizer step, `load_state_dict`, replaced parameters, another device or type. They do not
    change with an optimizer step under `fused=True` or with writes through `parameter.data`: torch does not count
    these. A module that replaces another one is not watched either.

    Args:
        tables: torch's parameter tables, `module._parameters`: they show a replaced one.
        device: device type.
    """
    dtype = None
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    weights = []
    for table in tables:
        for parameter in table.values():
            if parameter is not None:
                n_changes = 0 if parameter.is_inference() else parameter._version
                weights.append((parameter.data_ptr(), n_changes))
    return dtype, weights
