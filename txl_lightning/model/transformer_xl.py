"""Transformer-XL (Dai et al. 2019): tokens and a memory to losses or hidden states and a new memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from txl_lightning.config.architecture import LENGTHS, TransformerXLConfig, options_beside
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.embedding import make_embedding, make_softmax
from txl_lightning.model.encodings import ENCODINGS, LayerPositions
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.layers import Dropout, FeedForward, initialize
from txl_lightning.model.memory import Memory, states_of_document
from txl_lightning.model.positions import (
    StreamBounds,
    VisibleKeys,
    attention_mask,
    without_marks,
)
from txl_lightning.model.shapes import Counts, Hidden, Places, Requested, States, Tokens
from txl_lightning.registry import Guests

Inference = Literal["cached inference", "one-pass windows", "generation", "attention lengths"]
Ability = Literal[
    Inference, "documents", "unequal lengths", "extended context", "gradient segments"
]
FEWER_PLACES = 8  # one query alone takes as long as about 8 in a block


class TransformerXLLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a LayerNorm (LN) after or before it.

    post-norm (the paper):  o = LN(h + Attn(h, m)),  h' = LN(o + FF(o))
    pre-norm:               o = h + Attn(LN h, LN m),  h' = o + FF(LN o)

    Args:
        config: sizes, dropout, and where the norms are.

    Attributes:
        attention_class: class for `attention`.
    """

    attention_class: ClassVar[type[Attention]] = Attention

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = self.attention_class(config)
        self.attention_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
        places_Q: Places | None = None,
    ) -> Requested:
        """Compute the layer's output from its input and the memory with its earlier inputs.

        Args:
            hidden_BTD: the layer's input.
            memory_BMD: its inputs in earlier segments.
            positions: u, v and the distances' encoding.
            visible: keys that the queries may attend to.
            places_Q: tokens whose output is returned, by place; None for all.
        """
        segment_BTD = self.attention_input(hidden_BTD)
        past_BMD = self.attention_input(memory_BMD)
        attended_BTD = self.attention(segment_BTD, past_BMD, positions, visible)
        if places_Q is not None:
            hidden_BTD = hidden_BTD[:, places_Q]
            attended_BTD = attended_BTD[:, places_Q]
        return self.after_attention(hidden_BTD, attended_BTD)

    def attention_input(self, hidden_BTD: Hidden) -> Hidden:
        """Return what attention projects from the layer's inputs: LN h in a pre-norm layer, else h."""
        if self.pre_norm:
            return self.attention_norm(hidden_BTD)
        return hidden_BTD

    def after_attention(self, hidden_BTD: Hidden, attended_BTD: Hidden) -> Hidden:
        """Compute the layer's output from its input and its attention's output."""
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        if self.pre_norm:
            return hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        hidden_BTD = self.attention_norm(hidden_BTD)
        return self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))


class TransformerXL(ScoringModel, nn.Module):
    """Transformer-XL: segment recurrence with a positional encoding, by default the paper's relative one.

    The memory is an argument and a result, never part of the module:

        nll, memory = model.score(tokens, targets, memory)

    With `vocab_size=None` it has no embedding and no softmax, and is a memory for other inputs:

        hidden, memory = model(inputs_BTD=inputs, memory=memory)

    Args:
        config: architecture and the default lengths for memory and attention.

    Attributes:
        config_class: class for `config`; a variant with further options has another.
        layer_class: the layers' class.
        state_class: its memory's class.
        cannot: abilities that a model variant lacks, each with the reason. A variant also lacks "cached inference" if
            it overrides a method in `REPLACED_BY_CACHE`.
    """

    config_class: ClassVar[type[TransformerXLConfig]] = TransformerXLConfig
    layer_class: ClassVar[type[TransformerXLLayer]] = TransformerXLLayer
    state_class: ClassVar[type[Memory]] = Memory
    cannot: ClassVar[Mapping[Ability, str]] = {}

    def __init_subclass__(cls) -> None:
        """Validate `cannot`, and add the base classes' entries."""
        super().__init_subclass__()
        cannot: dict[Ability, str] = {}
        for kind in reversed(cls.__mro__):
            cannot.update(vars(kind).get("cannot", {}))
        for ability in cannot:
            allowed = f"must be one of {', '.join(get_args(Ability))}"
            require(
                ability in get_args(Ability),
                "cannot",
                ability,
                allowed,
            )
        overridden = overridden_method(cls)
        if overridden is not None:
            reason = f"it overrides {overridden}, which cached inference does not call"
            cannot.setdefault("cached inference", reason)
        cls.cannot = cannot

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.encoding = ENCODINGS[config.encoding](config)
        self.embedding = make_embedding(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList()
        for _ in range(config.n_layer):
            self.layers.append(self.layer_class(config))
        self.softmax = make_softmax(config, self.embedding)
        initialize(self, config.init_std)

    @property
    def takes_lengths(self) -> bool:  # type: ignore[override]
        """Whether streams may have unequal lengths."""
        return "unequal lengths" not in self.cannot

    def with_lengths(self, **lengths: Any) -> TransformerXL:
        """Return a view on the same weights with other lengths; this model keeps its lengths.

        Everything else is shared, training mode and device included.

        Args:
            lengths: any names in `LENGTHS`.

        Raises:
            OptionError: a length is not allowed.
            TypeError: unknown name.
        """
        unknown = set(lengths) - LENGTHS
        if unknown:
            names = sorted(unknown)
            raise TypeError(f"with_lengths() got {names}, which would change the weights")
        view = copy.copy(self)
        view.config = replace(self.config, **lengths)
        return view

    def start_memory(self, batch_size: int, static: bool = False) -> Memory:
        """Return the memory before B streams' first tokens.

        It is empty, or has `mem_len` zero states that queries attend to if `config.memory_start` is
        `zeros`.

        Args:
            batch_size: B.
            static: give an empty memory a full one's shape, with nothing filled, so shapes never change.
        """
        config = self.config
        filled = config.memory_slots if config.memory_start == "zeros" else 0
        length = config.memory_slots if static else filled
        shape = (config.n_layer, batch_size, length, config.d_model)
        states = next(self.parameters()).new_zeros(shape)
        in_document_B = None
        if config.memory_reset == "document":
            in_document_B = torch.zeros(
                batch_size,
                dtype=torch.int64,
                device=states.device,
            )
        return self.state_class(states, filled, in_document_B=in_document_B)

    def prepare_memory(self, memory: Memory, batch_size: int) -> Memory:
        """Return the memory that a segment reads: with `memory_start=zeros`, reset streams get zeros.

        Raises:
            ValueError: it has another number of streams, or another kind.
        """
        if memory.batch_size != batch_size:
            streams = f"{memory.batch_size} streams given with tokens for {batch_size} streams"
            raise ValueError(f"memory of {streams}")
        if type(memory) is not self.state_class:
            raise ValueError(f"{type(memory).__name__} given to a {type(self).__name__}")
        if memory.in_document_B is None or self.config.memory_start != "zeros":
            return memory
        begins_B11 = memory.in_document_B[:, None, None] < 0
        states = memory.states.masked_fill(begins_B11, 0.0)
        return replace(memory, states=states, in_document_B=None)

    def positions(self, n_keys: int, like: Tensor) -> list[LayerPositions]:
        """Return u, v and the encoding for the distances K, …, 0 for every layer.

        Args:
            n_keys: K.
            like: tensor with the result's type and device.
        """
        return self.encoding.positions(n_keys, self.config.clamp_len, like)

    def visible(self, memory: Memory, n_tokens: int, like: Tensor) -> VisibleKeys:
        """Return the keys that T tokens after a memory may attend to."""
        attention_len = self.config.attention_len
        mask_TK = attention_mask(
            n_tokens,
            memory.length,
            memory.filled,
            attention_len,
            like,
        )
        is_full = memory.filled == memory.length
        return VisibleKeys(mask_TK, sees_memory=is_full and attention_len is None)

    def next_memory(
        self,
        memory: Memory,
        inputs: Sequence[Hidden],
        bounds: StreamBounds | None = None,
    ) -> Memory:
        """Return the memory after a segment, from the layers' inputs (`Memory.update`)."""
        return memory.update(
            inputs,
            self.config.mem_len,
            self.config.ext_len,
            bounds,
        )

    def embed(
        self,
        tokens_BT: Tokens | None,
        inputs_BTD: Hidden | None,
        lengths_B: Counts | None = None,
    ) -> Hidden:
        """Return the scaled embeddings for the tokens, marked or not, or the inputs in their place."""
        if tokens_BT is not None and self.config.memory_reset == "document":
            tokens_BT = without_marks(tokens_BT)
        return super().embed(tokens_BT, inputs_BTD, lengths_B)

    def stream_bounds(
        self, tokens_BT: Tensor | None, lengths_B: Tensor | None, memory: Any, hidden_BTD: Tensor
    ) -> StreamBounds | None:
        """Return where documents begin and streams end in a segment; None if all have one document."""
        marked_BT = tokens_BT if self.config.memory_reset == "document" else None
        if marked_BT is None and lengths_B is None and memory.in_document_B is None:
            return None
        in_document_B = states_of_document(memory, hidden_BTD.device)
        T = hidden_BTD.shape[1]
        return StreamBounds.of_segment(
            marked_BT,
            lengths_B,
            T,
            memory.length,
            in_document_B,
        )

    def forward(
        self,
        tokens_BT: Tokens | None = None,
        memory: Memory | None = None,
        n_last: int | None = None,
        places_Q: Places | None = None,
        *,
        inputs_BTD: Hidden | None = None,
        lengths_B: Counts | None = None,
    ) -> tuple[Requested, Memory]:
        """Return the last layer's hidden states, after dropout, and the memory after the segment.

        All T tokens are processed, extended context included. The last layer computes only the
        requested tokens.

        Args:
            tokens_BT: T consecutive tokens in B streams; with `memory_reset=document`, -1 - token begins a document.
            memory: returned for the previous segment; None at the streams' start.
            n_last: Q, how many last tokens' states are returned; None for all.
            places_Q: tokens whose states are returned, by place from 0, instead of `n_last`; None for all.
            inputs_BTD: used instead of tokens and their scaled embeddings; it gets the gradient.
            lengths_B: each stream's number of tokens, from 0 to T; padding, with any content, follows them. Its states
                have no meaning, and a stream's memory ends with the stream's last real token. None without padding.

        Raises:
            OptionError: tokens are given to a model without a vocabulary, lengths to one that does
                not take them (`takes_lengths`), or the memory was reset and cannot be.
            ValueError: the memory has another number of streams, or another kind, or `n_last` and `places_Q` are both
                given; see also `embed`.
        """
        if n_last is not None and places_Q is not None:
            raise ValueError("give either n_last or places_Q")
        hidden_BTD = self.embed(tokens_BT, inputs_BTD, lengths_B)
        B, T = hidden_BTD.shape[:2]
        if memory is None:
            memory = self.start_memory(B)
        memory = self.prepare_memory(memory, B)
        bounds = self.stream_bounds(tokens_BT, lengths_B, memory, hidden_BTD)
        embedded_BTD = self.encoding.embed_streams(
            hidden_BTD,
            self.config.clamp_len,
            bounds,
        )
        hidden_BTD = self.dropout(embedded_BTD)
        positions = self.positions(memory.length + T, hidden_BTD)
        visible = self.visible(memory, T, hidden_BTD)
        if bounds is not None:
            visible = visible._replace(mask_TK=bounds.hide_other_documents(visible.mask_TK))

        inputs: list[Tensor] = []
        states = memory.states.unbind()  # an index would have a gradient as large as all states
        for n, layer in enumerate(self.layers):
            input_BTD = self.encoding.layer_input_of_streams(n, hidden_BTD, bounds)
            inputs.append(input_BTD)
            if n < self.config.n_layer - 1:
                hidden_BTD = layer(
                    input_BTD,
                    states[n],
                    positions[n],
                    visible,
                )
        hidden_BTD = self._last_layer(
            inputs[-1], states[-1], positions[-1], visible, n_last, places_Q
        )
        return self.dropout(hidden_BTD), self.next_memory(memory, inputs, bounds)

    def _last_layer(
        self,
        input_BTD: Tensor,
        states_BMD: Tensor,
        positions: LayerPositions,
        visible: VisibleKeys,
        n_last: int | None,
        places_Q: Tensor | None,
    ) -> Requested:
        """Compute the last layer for the requested tokens; tokens before them are keys only.

        If few places are requested, it begins at the first one; a CPU computes each query alone.
        """
        T = input_BTD.shape[1]
        n_queries = T if n_last is None else n_last
        if places_Q is not None and visible.causal and FEWER_PLACES * len(places_Q) <= T:
            first = int(places_Q.min())
            n_queries = T - first
            places_Q = places_Q - first
            visible = visible._replace(only_queries=tuple(places_Q.tolist()))
        n_before = max(0, T - n_queries)
        if n_before > 0:
            before_BTD, input_BTD = input_BTD.split([n_before, n_queries], dim=1)
            states_BMD = torch.cat([states_BMD, before_BTD], dim=1)
            visible = visible._replace(mask_TK=visible.mask_TK[..., n_before:, :])
        return self.layers[-1](
            input_BTD,
            states_BMD,
            positions,
            visible,
            places_Q=places_Q,
        )


# Methods that cached inference does not call: a variant that overrides one is run without the
# cache.
REPLACED_BY_CACHE: dict[type, tuple[str, ...]] = {
    TransformerXL: (
        "forward",
        "score",
        "state_class",
        "start_memory",
        "next_memory",
        "prepare_memory",
        "visible",
    ),
    TransformerXLLayer: ("forward",),
    Attention: ("forward", "heads"),
}


def overridden_method(variant: type[TransformerXL]) -> str | None:
    """Return a method in `REPLACED_BY_CACHE` that a variant overrides; None for none."""
    layer = variant.layer_class
    kinds = (variant, layer, layer.attention_class)
    for kind, (core, names) in zip(kinds, REPLACED_BY_CACHE.items(), strict=True):
        for name in names:
            if getattr(kind, name) is not getattr(core, name):
                return f"{core.__name__}.{name}"
    return None


M = TypeVar("M", bound=TransformerXL)
VARIANTS: Guests[type[Any]] = Guests("variant", "txl_lightning.variants.{}")


def register_variant(name: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that registers a subclass of `TransformerXL` for `txl train variant=NAME`.

    The fields that its `config_class` adds to `TransformerXLConfig` are its options:
    `variant.OPTION=VALUE`. A checkpoint holds only the name and the options, so the class must be
    registered before one is loaded.

    Raises:
        OptionError: another class has the name, or TransformerXLConfig has an option with an equal name.
    """

    def register(variant: type[M]) -> type[M]:
        options = options_beside(variant.config_class, TransformerXLConfig)
        for option in options:
            taken = "is the name of another option or property of TransformerXLConfig"
            require(
                not hasattr(TransformerXLConfig, option),
                "name",
                option,
                taken,
            )
        VARIANTS.add(name, variant, options)
        return variant

    return register
