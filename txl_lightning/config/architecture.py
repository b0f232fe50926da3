"""Model architectures and their use of memory: one declaration for torch and for the options in `conf/`."""

from __future__ import annotations

import itertools
import math
from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from txl_lightning.errors import (
    Count,
    Length,
    Rule,
    check,
    one_of,
    require,
    require_memory,
)
from txl_lightning.registry import Guests

Probability = Annotated[float, (lambda x: 0.0 <= x < 1.0, "must be a probability in [0, 1)")]
Positive = Annotated[float, (lambda x: 0 < x < math.inf, "must be a number > 0 and finite")]
CLAMP = (lambda x: x >= -1, "must be -1 (no clamp) or an integer >= 0")
TERMS = (
    lambda x: set(x) <= set("abcd") and len(set(x)) == len(x),
    "must be letters of abcd, each at most once",
)
CUTOFFS = (
    lambda x: all(isinstance(b, int) and a < b for a, b in itertools.pairwise((0, *x))),
    "must be ascending integers >= 1",
)
UNKNOWN = "???"  # a value that Hydra has yet to fill in
# Options of the model that are not in the group `model`.
OF_OTHER_GROUPS = {
    "encoding": "encoding.name",
    "table_len": "encoding.table_len",
    "mem_len": "memory.mem_len",
    "memory_start": "memory.start",
    "memory_reset": "memory.reset",
}
ACCEPTED: Any = {float: (int, float), tuple: (list, tuple)}


@dataclass(frozen=True)
class EncodingKind:
    """Properties of an encoding that other code asks for, as given to `model.encodings.register_encoding`.

    Args:
        terms: its score terms, out of (a)-(d).
        absolute: whether its positions count within a segment, hence cannot exceed the trained length.
        projects: whether every layer has a matrix W_{k,R} for `LayerPositions.sinusoids_SD`.
        table: rows in its trained table: one per distance (`distances`: segment, extended context and memory) or one
            per position (`positions`: segment and extended context); None without a table.
        extrapolates: whether evaluation keeps distances beyond training's as they are, instead of clamping them.
        rotates: whether queries and keys are rotated (`Encoding.angles`): no `clamp_len`.
    """

    terms: str = "a"
    absolute: bool = False
    projects: bool = False
    table: Literal["distances", "positions"] | None = None
    extrapolates: bool = False
    rotates: bool = False


KINDS: Guests[EncodingKind] = Guests("encoding", "txl_lightning.model.encodings")


@cache
def rules_of(kind: type) -> dict[str, list[Rule]]:
    """Return the rules for each option: its default's type, and the rules in its annotation.

    A rule stands in `Annotated[type, rule, …]`. A class may annotate an option anew, with another default; the rules of
    its parents count too.
    """
    rules: dict[str, list[Rule]] = {}
    for base in kind.__mro__:
        for name, hint in get_type_hints(base, include_extras=True).items():
            if name not in rules:
                default = getattr(kind, name, None)
                rules[name] = [] if default in (None, UNKNOWN) else [of_type(type(default))]
            for part in (hint, *get_args(hint)):  # the second for `… | None`
                rules[name] += getattr(part, "__metadata__", ())
    return rules


def of_type(kind: type) -> Rule:
    """Return the rule that a value is of a type."""
    accepted = ACCEPTED.get(kind, kind)
    return lambda x: isinstance(x, accepted), f"must be of type {kind.__name__}"


class Options:
    """Options that check their values; a subclass adds rules for several options in `__post_init__`.

    Raises:
        OptionError: a value is not allowed; the message names it, with `prefix` in front.
    """

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        rules = rules_of(kind)
        for name, value in vars(self).items():
            if value != UNKNOWN:
                option = f"{self.prefix}{name}".removesuffix(".name")
                check(option, value, *rules[name])


def option_names(architecture: type) -> dict[str, str]:
    """Return the option of every field as typed on the command line; the corpus gives `vocab_size`."""
    names = {}
    for field in fields(architecture):
        names[field.name] = OF_OTHER_GROUPS.get(field.name, f"model.{field.name}")
    del names["vocab_size"]
    return names


def options_beside(architecture: type, core: type) -> dict[str, Any]:
    """Return the defaults for the fields that a variant's config adds to the core's."""
    known = [described.name for described in fields(core)]
    defaults = {}
    for described in fields(architecture):
        if described.name not in known:
            defaults[described.name] = described.default
            if callable(described.default_factory):
                defaults[described.name] = described.default_factory()
    return defaults


@dataclass(kw_only=True)
class ModelOptions(Options):
    """Options for every model, in the group `model`.

    Args:
        n_layer: N, layers.
        d_model: D, width of the hidden states.
        dropout: dropout probability; see the model for the places.
        d_embed: embedding width; null for D.
        cutoffs: where the adaptive embedding's and softmax's clusters begin, without the first cluster's 0.
        div_val: each cluster's embedding is narrower by this factor than the cluster's before.
        tie_projections: clusters whose softmax shares the embedding's projection. `all_but_first` as on WikiText-103,
            `none` as on One Billion Word, or `all`.
    """

    n_layer: Count = 12
    d_model: Count = 512
    dropout: Probability = 0.1
    d_embed: Count | None = None
    cutoffs: Annotated[tuple[int, ...], CUTOFFS] = ()
    div_val: Count = 1
    tie_projections: Annotated[str, one_of("all_but_first", "all", "none")] = "all_but_first"


@dataclass
class Architecture(ModelOptions):
    """A model's config: its options, and the vocabulary size.

    Args:
        vocab_size: V, number of tokens; None for a model that reads inputs, without embedding and softmax.

    Raises:
        OptionError: a value is not allowed; the message names it.
    """

    vocab_size: Count | None
    initial_only: ClassVar[frozenset[str]] = frozenset()  # fields that only initialize weights

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cutoffs:
            below = f"must be below the {self.vocab_size} tokens of the vocabulary"
            fits = self.cutoffs[-1] < (self.vocab_size or 0)
            require(fits, "cutoffs", self.cutoffs, below)
        narrowest = (self.d_embed or self.d_model) // self.div_val ** len(self.cutoffs)
        wide = "must leave the last cluster an embedding of width >= 1"
        require(narrowest >= 1, "div_val", self.div_val, wide)


@dataclass(kw_only=True)
class TransformerXLOptions(ModelOptions):
    """Options for a Transformer-XL in the group `model` (paper §3, appendix A and B).

    The defaults are the paper's enwik8 base model. `dropout` is everywhere except at the attention probabilities;
    `d_model` must be even, since half a position is sine and half cosine.

    Args:
        n_head: H, attention heads.
        d_head: width of one head; H·d_head need not equal D.
        d_inner: width of the feed-forward layer.
        attention_dropout: dropout probability at the attention probabilities.
        pre_norm: LayerNorm before each sublayer instead of after the residual sum.
        layer_norm_epsilon: added to the variance in LayerNorm (1e-12 in the TensorFlow code).
        init_std: standard deviation of the initial weights (0.005 in the TensorFlow code's largest models).
        untie_biases: u and v per layer (`untie_r` in other code), not shared by all layers.
        terms: score terms (a)-(d) to use, in any order. Parameters that only other terms need do not exist. Absolute
            encodings have only (a). Without any term attention is uniform over the visible keys.
        same_length: every query attends to the nearest mem_len keys, including itself. All tokens in a segment then
            have equally long context. Without memory the plain causal mask is used.
        extra_key: with same_length every query attends to one key more, as in the TensorFlow code. These are the
            nearest `mem_len` and itself, also without memory.
        clamp_len: larger distances are encoded like this one; -1 or 0 for none.
        ext_len: extended context: tokens fed again before the next segment. They are each segment's last tokens, and so
            do not enter the memory.
    """

    n_head: Count = 8
    d_head: Count = 64
    d_inner: Count = 2048
    attention_dropout: Probability = 0.0
    pre_norm: bool = False
    layer_norm_epsilon: Positive = 1e-5
    init_std: Positive = 0.02
    untie_biases: bool = False
    terms: Annotated[str, TERMS] = "abcd"
    same_length: bool = False
    extra_key: bool = False
    clamp_len: Annotated[int, CLAMP] = -1
    ext_len: Length = 0


@dataclass
class TransformerXLConfig(TransformerXLOptions, Architecture):
    """A Transformer-XL's architecture and its use of memory.

    Fields in `LENGTHS` may differ between training and evaluation on the same weights (`TransformerXL.with_lengths`).
    `TransformerXLOptions` and `ModelOptions` have the other fields.

    Args:
        encoding: a registered position encoding (`model.encodings`).
        table_len: rows in a trained position table, by distance (`shaw`: segment + extended context + memory) or by
            position (`al_rfou`: segment + extended context).
        mem_len: longest memory in states per layer; 0 is a model without recurrence.
        memory_start: `empty` (grows from nothing, as in the paper's code) or `zeros` (`mem_len` zero states that
            are attended to, as in the TensorFlow code and Hugging Face).
        memory_reset: `never`, or `document`: no token attends to anything before its document. A token that begins
            a document is given as -1 - token (`positions.without_marks`).
    """

    _: KW_ONLY
    encoding: str = "relative"
    table_len: Count | None = None
    mem_len: Length = 512
    memory_start: Annotated[str, one_of("empty", "zeros")] = "empty"
    memory_reset: Annotated[str, one_of("never", "document")] = "never"

    def __post_init__(self) -> None:
        super().__post_init__()
        start = self.memory_start
        by = f"encoding={self.encoding}"
        even = "must be an even integer (half of a position is sine, half cosine)"
        require(self.d_model % 2 == 0, "d_model", self.d_model, even)
        has_rows = self.kind.table is None or self.table_len is not None
        require(has_rows, "table_len", self.table_len, f"must be given for {by}")
        if self.memory_reset == "document":
            empty = "must be empty with memory_reset=document"
            require(start == "empty", "memory_start", start, empty)
        if self.kind.rotates:
            pairs = f"must be even: {by} rotates pairs of components"
            require(self.d_head % 2 == 0, "d_head", self.d_head, pairs)
            require(self.clamp_len <= 0, "clamp_len", self.clamp_len, f"must be -1: {by} rotates")
        if start == "zeros":  # allocated from the first token on, for one stream at least
            n_bytes = 4 * self.n_layer * self.memory_slots * self.d_model
            require_memory(n_bytes, "mem_len", self.mem_len)

    @property
    def is_recurrent(self) -> bool:
        """Whether a segment reads anything from earlier ones."""
        return self.mem_len > 0

    @property
    def memory_slots(self) -> int:
        """States per layer in a full memory."""
        return self.mem_len

    @property
    def kind(self) -> EncodingKind:
        """The encoding's properties."""
        return KINDS.named(self.encoding)

    @property
    def attention_len(self) -> int | None:
        """The nearest keys that every query sees with `same_length`, including itself; None for no such limit."""
        return (self.memory_slots + self.extra_key or None) if self.same_length else None

    @property
    def active_terms(self) -> str:
        """Chosen terms that the encoding has, in alphabetical order."""
        return "".join(term for term in self.kind.terms if term in self.terms)


LENGTHS = frozenset(  # may differ between training and evaluation, on the same weights
    ("mem_len", "same_length", "extra_key", "clamp_len", "ext_len", "memory_start", "memory_reset")
)


@dataclass(kw_only=True)
class RecurrentOptions(ModelOptions):
    """Options for a recurrent baseline (`model.baselines`) in the group `model`.

    `dropout` is at the embedding and at the last layer's output.

    Args:
        cell: `lstm` or `qrnn`.
        hidden_dropout: probability between layers.
        weight_dropout: dropout probability for single weights, one mask per segment: an LSTM's hidden-to-hidden
            weights, all weights in a QRNN layer.
    """

    n_layer: Count = 2
    cell: Annotated[str, one_of("lstm", "qrnn")] = "lstm"
    hidden_dropout: Probability = 0.1
    weight_dropout: Probability = 0.0


@dataclass
class RecurrentConfig(RecurrentOptions, Architecture):
    """A recurrent baseline's architecture."""
