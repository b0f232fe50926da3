"""Architecture and memory of a Transformer-XL, validated at construction."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

from txl_lightning.config.encoding_kinds import KINDS, EncodingKind
from txl_lightning.errors import require

MemoryStart = Literal["empty", "zeros"]
MemoryReset = Literal["never", "document"]
Norm = Literal["layer", "rms"]
TieProjections = Literal["all_but_first", "all", "none"]
FeedForwardKind = Literal["relu", "swiglu", "geglu"]
TRAINED_COMPRESSIONS = ("conv", "dilated")
COMPRESSIONS = ("max", "mean", *TRAINED_COMPRESSIONS, "most_used")

LENGTHS = frozenset(  # fields that may differ between training and evaluation on the same weights
    {
        "mem_len",
        "compressed_len",
        "same_length",
        "extra_key",
        "clamp_len",
        "ext_len",
        "memory_start",
        "memory_reset",
        "interpolation",
    }
)


@dataclass(frozen=True)
class TransformerXLConfig:
    """Architecture of a Transformer-XL and its use of memory (paper §3, appendix A and B).

    The fields up to `compression_loss` fix the parameters. The others may differ between training and
    evaluation on the same weights (`TransformerXL.with_lengths`). The defaults are the paper's enwik8 base
    model.

    Args:
        vocab_size: V, number of tokens.
        n_layer: N, layers.
        d_model: D, width of the hidden states; even, since half of a position is sine and half cosine.
        n_head: H, attention heads.
        d_head: width of one head; H·d_head need not equal D.
        d_inner: width of the feed-forward layer. A gated one has three matrices instead of two: 2/3 of the width
            gives as many parameters.
        dropout: probability everywhere except at the attention probabilities.
        attention_dropout: probability at the attention probabilities.
        pre_norm: LayerNorm before each sublayer instead of after the residual sum.
        final_norm: LayerNorm of the last layer's output, as in GPT-2; the paper's code has none, pre-norm or not.
        norm: `layer`, or `rms` for RMSNorm instead of every LayerNorm above.
        feed_forward: `relu` as in the paper, or gated by a SiLU (`swiglu`) or a GELU (`geglu`).
        layer_norm_epsilon: added to the variance in LayerNorm (1e-12 in the TensorFlow code) or to the mean square in
            RMSNorm.
        init_std: standard deviation of the initial weights (0.005 in the TensorFlow code's largest models).
        untie_biases: u and v per layer (`untie_r` in other code) instead of shared by all layers.
        qk_norm: RMSNorm with a trained gain on the queries and on the keys of every head, before any rotation.
        encoding: name of a registered position encoding (`model.encodings`).
        terms: terms (a)-(d) of the score to use, in any order; parameters of the others do not exist.
            Absolute encodings have only (a). Without any term attention is uniform over the visible keys.
        table_len: rows of a trained position table: of distances (`shaw`: segment + extended context + memory)
            or of positions (`al_rfou`: segment + extended context).
        d_embed: width of the embedding; None for D.
        cutoffs: first token of every cluster of the adaptive embedding and softmax but the first, ascending.
        div_val: the embedding of each cluster is narrower by this factor than that of the cluster before.
        tie_projections: clusters whose softmax shares the projection of the embedding (`all_but_first` as on
            WikiText-103, `none` as on One Billion Word, or `all`).
        compression: function that compresses states that fall out of the memory (`model.compression`); None for
            an ordinary memory.
        compression_rate: states that become one compressed state.
        compression_loss: what trains the compressor: reconstruction of attention or of states, or `none`.
        mem_len: longest memory in states per layer; 0 is a model without recurrence.
        compressed_len: most compressed states per layer, before the `mem_len` ordinary ones; 0 for none.
        same_length: every query attends to the nearest `memory_slots` keys, itself among them, so that all
            tokens of a segment have a context of the same length. Without memory the plain causal mask is used.
        extra_key: with `same_length` every query attends to one key more, the nearest `mem_len` and itself, also
            without memory (the TensorFlow code's mask).
        clamp_len: larger distances are encoded like this one; -1 or 0 for none.
        ext_len: length of the extended context: the last tokens of each segment are fed again before the
            next one, and so do not enter the memory.
        memory_start: `empty` (grows from nothing, as in the paper's code) or `zeros` (`mem_len` zero states that
            are attended to, as in the TensorFlow code and Hugging Face).
        memory_reset: `never`, or `document`: no token attends to anything before its document. A token that begins
            a document is given as -1 - token (`positions.without_marks`).
        interpolation: positions of an encoding that rotates are divided by this (position interpolation, Chen et al.
            2023), so that attention longer by this factor has the angles of training.

    Raises:
        OptionError: a value is not allowed; the message names it.
    """

    vocab_size: int
    n_layer: int = 12
    d_model: int = 512
    n_head: int = 8
    d_head: int = 64
    d_inner: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pre_norm: bool = False
    final_norm: bool = False
    norm: Norm = "layer"
    feed_forward: FeedForwardKind = "relu"
    layer_norm_epsilon: float = 1e-5
    init_std: float = 0.02
    untie_biases: bool = False
    qk_norm: bool = False
    encoding: str = "relative"
    terms: str = "abcd"
    table_len: int | None = None
    d_embed: int | None = None
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_projections: TieProjections = "all_but_first"
    compression: str | None = None
    compression_rate: int = 4
    compression_loss: str = "reconstruction"

    mem_len: int = 512
    compressed_len: int = 0
    same_length: bool = False
    extra_key: bool = False
    clamp_len: int = -1
    ext_len: int = 0
    memory_start: MemoryStart = "empty"
    memory_reset: MemoryReset = "never"
    interpolation: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "d_head", "d_inner", "div_val"):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= 1, name, value, "must be an integer >= 1")
        require(
            self.d_model >= 2 and self.d_model % 2 == 0,
            "d_model",
            self.d_model,
            "must be an even integer >= 2 (half of a position is sine, half cosine)",
        )
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, name, value, "must be a probability in [0, 1)")
        for name in ("mem_len", "ext_len"):
            value = getattr(self, name)
            require(value >= 0, name, value, "must be an integer >= 0")
        for name in ("layer_norm_epsilon", "init_std"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, value, "must be a number > 0 and finite")
        require(self.clamp_len >= -1, "clamp_len", self.clamp_len, "must be -1 (no clamp) or an integer >= 0")
        require(self.norm in ("layer", "rms"), "norm", self.norm, "must be layer or rms")
        kinds = ("relu", "swiglu", "geglu")
        require(self.feed_forward in kinds, "feed_forward", self.feed_forward, f"must be one of {', '.join(kinds)}")
        require(self.memory_start in ("empty", "zeros"), "memory_start", self.memory_start, "must be empty or zeros")
        resets, allowed = self.memory_reset == "document", "must be never or document"
        require(resets or self.memory_reset == "never", "memory_reset", self.memory_reset, allowed)
        allowed = "must be empty with memory_reset=document: only the first document of a stream would see the zeros"
        require(not resets or self.memory_start == "empty", "memory_start", self.memory_start, allowed)
        allowed = "must be 0 with memory_reset=document: compressed states are of several documents"
        require(not resets or not self.compressed_len, "compressed_len", self.compressed_len, allowed)
        require(self.encoding in KINDS, "encoding", self.encoding, f"must be one of {', '.join(KINDS)}")
        good_terms = set(self.terms) <= set("abcd") and len(set(self.terms)) == len(self.terms)
        require(good_terms, "terms", self.terms, "must be letters of abcd, each at most once")
        require(self.table_len is None or self.table_len >= 1, "table_len", self.table_len, "must be an integer >= 1")
        self._check_rotation()
        check_clusters(self)
        _check_compression(self)

    @property
    def compresses(self) -> bool:
        """Whether there is a compressed memory: neither length may be 0."""
        return self.compression is not None and self.mem_len > 0 and self.compressed_len > 0

    @property
    def memory_slots(self) -> int:
        """States of a full memory, compressed ones included: `mem_len` + `compressed_len`."""
        return self.mem_len + (self.compressed_len if self.compresses else 0)

    def _check_rotation(self) -> None:
        rotates, by = self.kind.rotates, f"encoding={self.encoding}"
        finite = 1 <= self.interpolation < math.inf
        require(finite, "interpolation", self.interpolation, "must be a number >= 1 and finite")
        fixed = rotates or self.interpolation == 1
        require(fixed, "interpolation", self.interpolation, f"must be 1: {by} rotates no queries and keys")
        paired = not rotates or self.d_head % 2 == 0
        require(paired, "d_head", self.d_head, f"must be even: {by} rotates pairs of components")
        unclamped = not rotates or self.clamp_len <= 0
        allowed = f"must be -1: {by} rotates queries and keys, which sets no limit to distances; use interpolation"
        require(unclamped, "clamp_len", self.clamp_len, allowed)

    @property
    def kind(self) -> EncodingKind:
        """Properties of the encoding."""
        return KINDS[self.encoding]

    @property
    def attention_len(self) -> int | None:
        """Number of keys that every query sees with `same_length`, itself included; None for no such limit."""
        return (self.memory_slots + self.extra_key or None) if self.same_length else None

    @property
    def active_terms(self) -> str:
        """Chosen terms that the encoding has, in alphabetical order."""
        return "".join(term for term in self.kind.terms if term in self.terms)

    @property
    def required_table_len(self) -> int:
        """Return `table_len`, for an encoding that needs it.

        Raises:
            OptionError: it is not given.
        """
        require(
            self.table_len is not None,
            "table_len",
            None,
            f"must be given for encoding={self.encoding} (trained tables)",
        )
        assert self.table_len is not None
        return self.table_len


def check_clusters(config: Any) -> None:
    """Validate the adaptive embedding and softmax of any model's config: cut-offs, widths and ties.

    Raises:
        OptionError: a value is not allowed; the message names it.
    """
    require(config.d_embed is None or config.d_embed >= 1, "d_embed", config.d_embed, "must be null or an integer >= 1")
    cutoffs = list(config.cutoffs)
    ascending = all(a < b for a, b in itertools.pairwise((0, *cutoffs)))
    require(ascending, "cutoffs", cutoffs, "must be ascending integers >= 1")
    below = not cutoffs or cutoffs[-1] < config.vocab_size
    require(below, "cutoffs", cutoffs, f"must be below the {config.vocab_size} tokens of the vocabulary")
    narrowest = (config.d_embed or config.d_model) // config.div_val ** len(config.cutoffs)
    require(narrowest >= 1, "div_val", config.div_val, "must leave the last cluster an embedding of width >= 1")
    ties = ("all_but_first", "all", "none")
    require(
        config.tie_projections in ties, "tie_projections", config.tie_projections, f"must be one of {', '.join(ties)}"
    )


def _check_compression(config: TransformerXLConfig) -> None:
    name, rate, length, loss = (
        config.compression,
        config.compression_rate,
        config.compressed_len,
        config.compression_loss,
    )
    if name is None:
        require(length == 0, "compressed_len", length, "must be 0 without a compression (memory=compressive has one)")
        return
    require(name in COMPRESSIONS, "compression", name, f"must be one of {', '.join(COMPRESSIONS)}")
    require(rate >= 1, "compression_rate", rate, "must be an integer >= 1")
    require(length >= 0, "compressed_len", length, "must be an integer >= 0")
    losses = ("reconstruction", "autoencoding", "none")
    require(loss in losses, "compression_loss", loss, f"must be one of {', '.join(losses)}")
    trained, names = name in TRAINED_COMPRESSIONS, " or ".join(TRAINED_COMPRESSIONS)
    require(loss != "none" or not trained, "compression_loss", loss, f"would leave compression={name} untrained")
    untrained = f"is for compression={names}: {name} has nothing to train"
    require(loss != "autoencoding" or trained, "compression_loss", loss, untrained)
    distances = f"needs an encoding of distances; encoding={config.encoding} counts positions within a segment"
    require(not config.kind.absolute, "compression", name, distances)
    content = f"compares attention by content, term (a), which terms={config.terms} lack"
    require(loss != "reconstruction" or "a" in config.active_terms, "compression_loss", loss, content)
    allowed = f"must be 0 or at least compression_rate={rate}"
    require(not config.compresses or config.mem_len >= rate, "mem_len", config.mem_len, allowed)
