"""Lengths of training and evaluation, and those that a config leaves open: rows of position tables, a clamp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from txl_lightning.config.architecture import kind_named
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.errors import OptionError, require

OPTIONS = {
    "memory": "mem_len",
    "extended": "ext_len",
    "same_length": "same_length",
    "clamp": "clamp_len",
}  # of Lengths


@dataclass(frozen=True)
class Lengths:
    """Length of a segment, and how far a Transformer-XL sees back from its tokens.

    Args:
        segment: T, tokens of a segment.
        memory: M, states of a full memory. None for a recurrent model, whose only length is its segments'.
        extended: tokens of extended context in front of every segment.
        same_length: with a memory, every query sees the nearest M keys, itself included.
        clamp: larger distances are encoded like this one; -1 or 0 for none, None for a recurrent model.
        extra_key: with `same_length`, every query sees one key more.
    """

    segment: int
    memory: int | None
    extended: int = 0
    same_length: bool = False
    clamp: int | None = -1
    extra_key: bool = False

    @property
    def window(self) -> int:
        """Tokens that the model reads at once: extended context and segment."""
        return self.extended + self.segment

    @property
    def attention_length(self) -> int:
        """Memory, extended context and segment: without `same_length`, the keys of a segment's last token."""
        return (self.memory or 0) + self.window

    @property
    def farthest_distance(self) -> int:
        """Largest distance between a query and a key, in tokens."""
        if self.memory and self.same_length:
            return self.memory - 1 + self.extra_key
        return self.attention_length - 1

    def keywords(self) -> dict[str, Any]:
        """Return the arguments of `with_lengths`, also the names in results; none for a recurrent model."""
        return (
            {}
            if self.memory is None
            else {option: getattr(self, name) for name, option in OPTIONS.items()}
        )

    def protocol_word(self, always_carries: bool) -> str:
        """Name the protocol: where a token's context comes from.

        carried         state of earlier segments: memory, whatever a variant carries, or the state of a recurrent model
        window          extended context in front of every segment
        segment only    only the segment: its first tokens have hardly any

        Args:
            always_carries: the model carries a state without a memory too.
        """
        if self.memory or always_carries:
            return "carried"
        return "window" if self.extended else "segment only"

    def streams_start(self, memory_start: str) -> str:
        """Name the context of a stream's first token; `memory_start` is the option `memory.start`."""
        attends_zeros = self.memory and memory_start == "zeros"
        return "with a memory of zeros that are attended to" if attends_zeros else "without context"


def table_len(config: Config) -> int | None:
    """Return the number of rows of a trained position table: as given, or as training needs; None without a table."""
    table, given = (
        kind_named(config.encoding.name).table,
        getattr(config.encoding, "table_len", None),
    )
    if given is not None or table is None:
        return given
    trained = training_lengths(config)
    return trained.attention_length if table == "distances" else trained.window


def tokens_per_step(config: Config) -> int:
    """Return the tokens of a training step, on all ranks together: `batch_size` streams of one or more segments."""
    return config.data.batch_size * config.data.segment_len * (config.memory.gradient_segments + 1)


def training_lengths(config: Config) -> Lengths:
    """Return the lengths of training."""
    model, segment = config.model, config.data.segment_len
    if not isinstance(model, TransformerXLModelConfig):
        return Lengths(segment, memory=None, clamp=None)
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

    For a converted `al_rfou` checkpoint this is the length of its table.
    """
    if (
        not isinstance(config.model, TransformerXLModelConfig)
        or not kind_named(config.encoding.name).absolute
    ):
        return None
    return max(table_len(config) or 0, training_lengths(config).window)


def evaluation_lengths(config: Config) -> Lengths:
    """Return the lengths of validation and test; null ones are training's.

    Raises:
        OptionError: a model is given a length that it does not have, or segment_len + ext_len exceeds `position_limit`.
    """
    trained, evaluation, limit = training_lengths(config), config.evaluation, position_limit(config)
    given = {
        name: value
        for name, option in OPTIONS.items()
        if (value := getattr(evaluation, option)) is not None
    }
    for name, value in given.items():
        allowed = f"must be null: {config.model.name} has no such length"
        require(trained.memory is not None, f"evaluation.{OPTIONS[name]}", value, allowed)
    lengths = replace(trained, segment=evaluation.segment_len, **given)
    require(
        (lengths.memory or 0) >= 0, "evaluation.mem_len", lengths.memory, "must be an integer >= 0"
    )
    if limit is not None and lengths.window > limit:
        name = "ext_len" if evaluation.ext_len else "segment_len"
        allowed = f"segment_len + ext_len = {lengths.window} must be at most {limit}, "
        allowed += f"the positions that encoding={config.encoding.name} was trained with"
        raise OptionError(f"evaluation.{name}", getattr(evaluation, name), allowed)
    return lengths


def with_segment_len(evaluation: EvaluationConfig, segment_len: int) -> EvaluationConfig:
    """Return the options with another segment length; `max_segments` still covers at least the tokens as before."""
    stop = evaluation.max_segments
    stop = None if stop is None else -(-stop * evaluation.segment_len // segment_len)
    return replace(evaluation, segment_len=segment_len, max_segments=stop)


def in_windows(config: Config) -> Config:
    """Return the config with windows in place of segments for validation and test, if these have no memory.

    Without memory the first tokens of a segment would be scored with hardly any context. A window of W tokens, the
    segment of `evaluation`, scores its last max(1, W // 4) tokens instead: every token sees at least three quarters of
    W. `max_segments` and `trainer.val_max_segments` still cover the same tokens. A config with a memory, with an
    extended context of its own (also 0, for bare segments) or a recurrent model stays as it is.
    """
    trained, evaluation, W = (
        training_lengths(config),
        config.evaluation,
        config.evaluation.segment_len,
    )
    memory = trained.memory if evaluation.mem_len is None else evaluation.mem_len
    if memory != 0 or evaluation.ext_len is not None or trained.extended or W < 2:
        return config
    scored = max(1, W // 4)
    trainer, stop = config.trainer, config.trainer.val_max_segments
    if stop is not None:
        trainer = replace(trainer, val_max_segments=-(-stop * W // scored))
    windows = replace(with_segment_len(evaluation, scored), ext_len=W - scored)
    return replace(config, evaluation=windows, trainer=trainer)


def trained_clamp(config: Config) -> int | None:
    """Return `clamp_len` for attention beyond training's: the run's own, if any, else the longest trained distance.

    A trained table of distances repeats its last row and needs no clamp, unless it has rows that training did not
    reach; its `clamp_len` counts rows, one more than the distance. Absolute positions have no distances, a rotation no
    limit, and an encoding that extrapolates needs none: -1, no clamp. None for a recurrent model.
    """
    trained, given = training_lengths(config), config.evaluation.clamp_len
    if trained.clamp is None or given is not None:
        return given
    kind, distance = kind_named(config.encoding.name), trained.farthest_distance
    if trained.clamp > 0 or kind.absolute or kind.extrapolates or kind.rotates:
        return trained.clamp
    if kind.table == "distances":
        return distance + 1 if (table_len(config) or 0) > distance + 1 else -1
    return distance


def clamp_untrained(lengths: Lengths, config: Config) -> Lengths:
    """Set the clamp to `trained_clamp` in lengths whose attention reaches farther than training's."""
    if lengths.farthest_distance <= training_lengths(config).farthest_distance:
        return lengths
    return replace(lengths, clamp=trained_clamp(config))
