"""Lengths for training and evaluation, and what a config leaves open: rows in position tables, a clamp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from txl_lightning.config.architecture import KINDS
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.errors import require

OPTIONS = ("mem_len", "ext_len", "same_length", "clamp_len")  # absent for a recurrent model


@dataclass(frozen=True)
class Lengths:
    """Segment length, and how far a Transformer-XL sees back from its tokens; named like the options.

    Args:
        segment_len: T, tokens per segment.
        mem_len: M, states in a full memory. None for a recurrent model, whose only length is its segments'.
        ext_len: extended context before every segment, in tokens.
        same_length: with a memory, every query sees the nearest M keys, itself included.
        clamp_len: larger distances are encoded like this one; -1 or 0 for none, None for a recurrent model.
        extra_key: with `same_length`, every query sees one key more.
    """

    segment_len: int
    mem_len: int | None
    ext_len: int = 0
    same_length: bool = False
    clamp_len: int | None = -1
    extra_key: bool = False

    @property
    def window(self) -> int:
        """Tokens that the model reads at once: extended context and segment."""
        return self.ext_len + self.segment_len

    @property
    def attention_length(self) -> int:
        """Memory, extended context and segment: without `same_length`, the keys that a segment's last token sees."""
        return (self.mem_len or 0) + self.window

    @property
    def farthest_distance(self) -> int:
        """Largest distance between a query and a key, in tokens."""
        if self.mem_len and self.same_length:
            return self.mem_len - 1 + self.extra_key
        return self.attention_length - 1

    def keywords(self) -> dict[str, Any]:
        """Return the arguments for `with_lengths`, also the names in results; none for a recurrent model."""
        if self.mem_len is None:
            return {}
        return {name: getattr(self, name) for name in OPTIONS}

    def protocol_word(self, always_carries: bool) -> str:
        """Name the protocol: where a token's context comes from.

        carried         state of earlier segments: memory, whatever a variant carries, or the state of a recurrent model
        window          extended context in front of every segment
        segment only    only the segment: its first tokens have hardly any

        Args:
            always_carries: the model carries a state without a memory too.
        """
        if self.mem_len or always_carries:
            return "carried"
        if self.ext_len:
            return "window"
        return "segment only"

    def streams_start(self, memory_start: str) -> str:
        """Name the context before a stream's first token; `memory_start` is the option `memory.start`."""
        if self.mem_len and memory_start == "zeros":
            return "with a memory of zeros that are attended to"
        return "without context"


def table_len(config: Config) -> int | None:
    """Return the rows in a trained position table: as given, or as training needs; None without a table."""
    name = config.encoding.name
    rows = config.encoding.table_len
    table = KINDS.named(name).table
    if table is None:
        require(rows is None, "encoding.table_len", rows, f"must be null: encoding={name} has none")
    elif rows is None:
        trained = training_lengths(config)
        rows = trained.attention_length if table == "distances" else trained.window
    return rows


def tokens_per_step(config: Config) -> int:
    """Return the tokens in a training step, on all ranks together: `batch_size` streams with one or more segments."""
    return config.data.batch_size * config.data.segment_len * (config.memory.gradient_segments + 1)


def training_lengths(config: Config) -> Lengths:
    """Return training's lengths."""
    model, segment = config.model, config.data.segment_len
    if not isinstance(model, TransformerXLModelConfig):
        return Lengths(segment, mem_len=None, clamp_len=None)
    return Lengths(
        segment,
        config.memory.mem_len,
        model.ext_len,
        model.same_length,
        model.clamp_len,
        extra_key=model.extra_key,
    )


def position_limit(config: Config) -> int | None:
    """Return the largest segment_len + ext_len with trained absolute positions; None if positions are relative.

    For a converted `al_rfou` checkpoint this is its table's length.
    """
    trained = training_lengths(config)
    if trained.mem_len is None or not KINDS.named(config.encoding.name).absolute:
        return None
    return max(table_len(config) or 0, trained.window)


def evaluation_lengths(config: Config) -> Lengths:
    """Return the lengths for validation and test; null ones are training's.

    Raises:
        OptionError: a model is given a length that it does not have, or segment_len + ext_len exceeds `position_limit`.
    """
    lengths = training_lengths(config)
    is_recurrent = lengths.mem_len is None
    given: dict[str, Any] = {"segment_len": config.evaluation.segment_len}
    for name in OPTIONS:
        value = getattr(config.evaluation, name)
        if value is not None:
            allowed = f"must be null: {config.model.name} has no such length"
            require(not is_recurrent, f"evaluation.{name}", value, allowed)
            given[name] = value
    lengths = replace(lengths, **given)
    limit = position_limit(config)
    if limit is not None:
        allowed = f"segment_len + ext_len = {lengths.window} must be at most {limit}, "
        allowed += f"the positions that encoding={config.encoding.name} was trained with"
        require(lengths.window <= limit, "evaluation.segment_len", lengths.segment_len, allowed)
    return lengths


def with_segment_len(evaluation: EvaluationConfig, segment_len: int) -> EvaluationConfig:
    """Return the options with another segment length; `max_segments` still covers at least the tokens as before."""
    stop = evaluation.max_segments
    if stop is not None:
        stop = -(-stop * evaluation.segment_len // segment_len)
    return replace(evaluation, segment_len=segment_len, max_segments=stop)


def in_windows(config: Config) -> Config:
    """Return the config with windows instead of segments for validation and test, if these have no memory.

    Without memory the first tokens in a segment would be scored with hardly any context. A window with W tokens
    (`evaluation`'s segment) scores only its last max(1, W // 4): every token sees at least three quarters of W.
    `max_segments` and `trainer.val_max_segments` still cover the same tokens. A config with a memory, with its extended
    context set (also 0, for bare segments) or with a recurrent model stays as it is.
    """
    lengths = evaluation_lengths(config)
    evaluation = config.evaluation
    trainer = config.trainer
    W = lengths.segment_len
    if lengths.mem_len != 0 or lengths.ext_len or evaluation.ext_len is not None or W < 2:
        return config
    scored = max(1, W // 4)
    if trainer.val_max_segments is not None:
        stop = -(-trainer.val_max_segments * W // scored)
        trainer = replace(trainer, val_max_segments=stop)
    windows = replace(with_segment_len(evaluation, scored), ext_len=W - scored)
    return replace(config, evaluation=windows, trainer=trainer)


def trained_clamp(config: Config) -> int | None:
    """Return `clamp_len` for attention longer than training's: the run's `clamp_len` if set, else the longest trained
    distance.

    In a trained table `clamp_len` counts rows, one more than the distance. Absolute positions have no distances, a
    rotation no limit, and an encoding that extrapolates needs none: -1, no clamp. None for a recurrent model.
    """
    trained = training_lengths(config)
    given = config.evaluation.clamp_len
    if trained.clamp_len is None or given is not None:
        return given
    kind = KINDS.named(config.encoding.name)
    if trained.clamp_len > 0 or kind.absolute or kind.extrapolates or kind.rotates:
        return trained.clamp_len
    return trained.farthest_distance + (kind.table == "distances")


def clamp_untrained(lengths: Lengths, config: Config) -> Lengths:
    """Set the clamp to `trained_clamp` in lengths whose attention reaches farther than training's."""
    if lengths.farthest_distance <= training_lengths(config).farthest_distance:
        return lengths
    return replace(lengths, clamp_len=trained_clamp(config))
