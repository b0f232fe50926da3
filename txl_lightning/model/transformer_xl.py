"""Transformer-XL (Dai et al. 2019): from tokens and a memory to losses or hidden states and the next memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txl_lightning.config.architecture import LENGTHS, TransformerXLConfig, options_beside
from txl_lightning.errors import require
from txl_lightning.model.attention import Attention
from txl_lightning.model.embedding import make_embedding, make_softmax
from txl_lightning.model.encodings import ENCODINGS, LayerPositions
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.layers import Dropout, FeedForward, initialize
from txl_lightning.model.memory import Memory, states_of_document
from txl_lightning.model.positions import OwnKeys, VisibleKeys, attention_mask, without_marks
from txl_lightning.registry import Guests

Inference = Literal["cached inference", "one-pass windows", "generation", "attention lengths"]
Ability = Literal[Inference, "documents", "unequal lengths", "extended context", "gradient segments"]
FEWER_PLACES = 8  # a query alone takes as long as about so many in a block


class TransformerXLLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a LayerNorm (LN) after or before it.

    post-norm (the paper):  o = LN(h + Attn(h, m)),  h' = LN(o + FF(o))
    pre-norm:               o = h + Attn(LN h, LN m),  h' = o + FF(LN o)

    Args:
        config: sizes, dropout, and the place of the norms.

    Attributes:
        attention_class: class of `attention`.
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
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
        places_Q: Int[Tensor, " Q"] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Compute the layer's output from its input and the memory of its earlier inputs.

        Args:
            hidden_BTD: input of the layer.
            memory_BMD: its inputs in earlier segments.
            positions: u, v and the encoding of the distances.
            visible: keys that the queries may attend to.
            places_Q: places of the tokens whose output is returned; None for all.
        """
        segment_BTD, past_BMD = self.attention_input(hidden_BTD), self.attention_input(memory_BMD)
        attended_BTD = self.attention(segment_BTD, past_BMD, positions, visible)
        if places_Q is not None:
            hidden_BTD, attended_BTD = hidden_BTD[:, places_Q], attended_BTD[:, places_Q]
        return self.after_attention(hidden_BTD, attended_BTD)

    def attention_input(self, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return what attention projects of the layer's inputs: LN h of a pre-norm layer, else h."""
        return self.attention_norm(hidden_BTD) if self.pre_norm else hidden_BTD

    def after_attention(
        self, hidden_BTD: Float[Tensor, "B T D"], attended_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Compute the layer's output from its input and the output of its attention."""
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
        config: architecture and the default lengths of memory and attention.

    Attributes:
        config_class: class of `config`; a variant with further options has its own.
        layer_class: class of the layers.
        state_class: class of its memory.
        cannot: what a variant of the model cannot do, with the reason in words.
    """

    config_class: ClassVar[type[TransformerXLConfig]] = TransformerXLConfig
    layer_class: ClassVar[type[TransformerXLLayer]] = TransformerXLLayer
    state_class: ClassVar[type[Memory]] = Memory
    cannot: ClassVar[Mapping[Ability, str]] = {}

    def __init_subclass__(cls) -> None:
        """Validate `cannot`, and add that of the classes that this one is a variant of."""
        super().__init_subclass__()
        cls.cannot = {name: why for kind in cls.__mro__[::-1] for name, why in vars(kind).get("cannot", {}).items()}
        for name in cls.cannot:
            require(name in get_args(Ability), "cannot", name, f"must be one of {', '.join(get_args(Ability))}")

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.encoding = ENCODINGS[config.encoding](config)
        self.embedding = make_embedding(config)
        self.dropout = Dropout(config.dropout)
        layers = [self.layer_class(config) for _ in range(config.n_layer)]
        self.layers = nn.ModuleList(layers)
        self.softmax = make_softmax(config, self.embedding)
        initialize(self, config.init_std)

    @property
    def takes_lengths(self) -> bool:  # type: ignore[override]
        """Whether streams may be of unequal length."""
        return "unequal lengths" not in self.cannot

    def with_lengths(self, **lengths: Any) -> TransformerXL:
        """Return a view on the same weights with other lengths; this model keeps its own.

        Everything else is shared, training mode and device included.

        Args:
            lengths: any of `LENGTHS`.

        Raises:
            OptionError: a length is not allowed.
            TypeError: a name is none of these.
        """
        unknown = set(lengths) - LENGTHS
        if unknown:
            raise TypeError(f"with_lengths() got {sorted(unknown)}, which would change the weights")
        view = copy.copy(self)
        view.config = replace(self.config, **lengths)
        return view

    def start_memory(self, batch_size: int, static: bool = False) -> Memory:
        """Return the memory before the first token of B streams.

        It is empty, or has `mem_len` zero states that queries attend to if `config.memory_start` is `zeros`.

        Args:
            batch_size: B.
            static: give an empty memory the shape of a full one, none of it filled, so that shapes never change.
        """
        config, zeros = self.config, self.config.memory_start == "zeros"
        length = config.memory_slots if zeros or static else 0
        states = next(self.parameters()).new_zeros(config.n_layer, batch_size, length, config.d_model)
        resets = config.memory_reset == "document"
        none_B = torch.zeros(batch_size, dtype=torch.int64, device=states.device) if resets else None
        return self.state_class(states, length if zeros else 0, in_document_B=none_B)

    def checked(self, memory: Memory, batch_size: int) -> Memory:
        """Validate the memory before a segment of B streams; with `memory_start=zeros`, reset streams get zero states.

        Raises:
            ValueError: it is of another number of streams, or of another kind.
        """
        if memory.batch_size != batch_size:
            raise ValueError(f"memory of {memory.batch_size} streams given with tokens of {batch_size} streams")
        if type(memory) is not self.state_class:
            raise ValueError(f"{type(memory).__name__} given to a {type(self).__name__}")
        if memory.in_document_B is None or self.config.memory_start != "zeros":
            return memory
        begins_B11 = memory.in_document_B[:, None, None] < 0
        return replace(memory, states=memory.states.masked_fill(begins_B11, 0.0), in_document_B=None)

    def positions(self, n_keys: int, like: Tensor) -> list[LayerPositions]:
        """Return u, v and the encoding of the distances K, …, 0 for every layer.

        Args:
            n_keys: K.
            like: tensor with the type and device of the result.
        """
        return self.encoding.positions(n_keys, self.config.clamp_len, like)

    def visible(self, memory: Memory, n_tokens: int, like: Tensor) -> VisibleKeys:
        """Return the keys that T tokens after a memory may attend to."""
        attention_len = self.config.attention_len
        mask_TK = attention_mask(n_tokens, memory.length, memory.filled, attention_len, like)
        return VisibleKeys(mask_TK, sees_memory=memory.filled == memory.length and attention_len is None)

    def next_memory(
        self, memory: Memory, inputs: Sequence[Float[Tensor, "B T D"]], own: OwnKeys | None = None
    ) -> Memory:
        """Return the memory after a segment, from the inputs of the layers (`Memory.update`)."""
        return memory.update(inputs, self.config.mem_len, self.config.ext_len, own)

    def forward(
        self,
        tokens_BT: Int[Tensor, "B T"] | None = None,
        memory: Memory | None = None,
        n_last: int | None = None,
        places_Q: Int[Tensor, " Q"] | None = None,
        *,
        inputs_BTD: Float[Tensor, "B T D"] | None = None,
        lengths_B: Int[Tensor, " B"] | None = None,
    ) -> tuple[Float[Tensor, "B Q D"], Memory]:
        """Return the hidden states of the last layer, after dropout, and the memory for the next segment.

        All T tokens are processed, extended context included. The last layer has queries of the last Q tokens only; at
        `places_Q` only these tokens pass its feed-forward; where they are few, on a CPU they are its only queries.

        Args:
            tokens_BT: T consecutive tokens of B streams; with `memory_reset=document`, -1 - token begins a document.
            memory: returned for the previous segment; None for the start of the streams.
            n_last: Q, the number of tokens, counted from the last, whose states are returned; None for all.
            places_Q: places from 0 of the tokens whose states are returned, instead of `n_last`; None for all.
            inputs_BTD: what takes the place of the scaled embeddings, instead of tokens; it gets the gradient.
            lengths_B: number of each stream's tokens, from 0 to T; padding, of any content, follows them. Its states
                have no meaning, and the memory of a stream ends with the stream's own last token. None without padding.

        Raises:
            OptionError: tokens are given to a model without a vocabulary, lengths to one that does not take them
                (`takes_lengths`), or the memory was reset and cannot be.
            ValueError: the memory is of another number of streams, or of another kind; see also `embed`.
        """
        marked_BT = tokens_BT if self.config.memory_reset == "document" else None
        hidden_BTD = self.embed(tokens_BT if marked_BT is None else without_marks(marked_BT), inputs_BTD, lengths_B)
        B, T = hidden_BTD.shape[:2]
        memory = self.checked(self.start_memory(B) if memory is None else memory, B)
        own = None
        if marked_BT is not None or memory.in_document_B is not None or lengths_B is not None:
            own = OwnKeys.of(marked_BT, lengths_B, T, memory.length, states_of_document(memory, hidden_BTD.device))
        hidden_BTD = self.dropout(self.encoding.at_start(hidden_BTD, self.config.clamp_len, own))
        positions, visible = self.positions(memory.length + T, hidden_BTD), self.visible(memory, T, hidden_BTD)
        visible = visible if own is None else visible._replace(mask_TK=own.hide_others(visible.mask_TK))

        inputs: list[Tensor] = []
        memory_N = memory.states.unbind()  # the gradient of an index would be as large as all states, in every layer
        for n, layer in enumerate(self.layers):
            inputs.append(self.encoding.at_layer(n, hidden_BTD, own))
            queries_BTD, states_BMD, places = inputs[n], memory_N[n], None
            if n == self.config.n_layer - 1:  # of which no later layer reads all states
                places, n_queries = places_Q, T if n_last is None else n_last
                if places is not None and visible.causal and FEWER_PLACES * len(places) <= T:
                    n_queries = T - int(places.min())
                    places = places - (T - n_queries)
                    visible = visible._replace(places=tuple(places.tolist()))
                queries_BTD, states_BMD, visible = last_queries(n_queries, queries_BTD, states_BMD, visible)
            hidden_BTD = layer(queries_BTD, states_BMD, positions[n], visible, places_Q=places)
        return self.dropout(hidden_BTD), self.next_memory(memory, inputs, own)


M = TypeVar("M", bound=TransformerXL)
VARIANTS: Guests[type[Any]] = Guests("variant", "txl_lightning.variants.{}")


def register_variant(name: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that registers a subclass of `TransformerXL`: `txl train variant=NAME variant.option=value`.

    The fields that its `config_class` has beside those of `TransformerXLConfig` are its options. A checkpoint holds
    only the name and the options, so the class must be registered before one is loaded.

    Raises:
        OptionError: another class has the name, or the core has that of an option.
    """

    def register(variant: type[M]) -> type[M]:
        options = options_beside(variant.config_class, TransformerXLConfig)
        for option in options:
            taken = "is the name of another option or property of TransformerXLConfig"
            require(not hasattr(TransformerXLConfig, option), "name", option, taken)
        VARIANTS.add(name, variant, options)
        return variant

    return register


def last_queries(
    n: int, hidden_BTD: Float[Tensor, "B T D"], memory_BMD: Float[Tensor, "B M D"], visible: VisibleKeys
) -> tuple[Float[Tensor, "B Q D"], Float[Tensor, "B N D"], VisibleKeys]:
    """Keep the last n tokens as queries: those before them only give keys and values, as the memory does."""
    before = max(0, hidden_BTD.shape[1] - n)
    if not before:
        return hidden_BTD, memory_BMD, visible
    before_BTD, queries_BTD = hidden_BTD.split([before, n], dim=1)
    visible = visible._replace(mask_TK=visible.mask_TK[..., before:, :])
    return queries_BTD, torch.cat([memory_BMD, before_BTD], dim=1), visible
