"""Compute the lengths that a config leaves open: rows of position tables, lengths of evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txl_lightning.config.encoding_kinds import EncodingKind, kind_named
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.errors import OptionError, require


def encoding_kind(config: Config) -> EncodingKind:
    """Return the properties of the config's encoding, built in or custom.

    Raises:
        OptionError: there is no such encoding.
    """
    return kind_named(config.encoding.name)


def table_len(config: Config) -> int | None:
    """Return the number of rows of a trained position table: as given, or as training needs; None without a table."""
    table, given = encoding_kind(config).table, getattr(config.encoding, "table_len", None)
    if given is not None or table is None:
        return given
    positions = config.data.segment_len + extended_context(config)
    return positions + config.memory.mem_len if table == "distances" else positions


def tokens_per_step(config: Config) -> int:
    """Return the tokens of a training step, on all ranks together: `batch_size` streams of one or more segments."""
    return config.data.batch_size * config.data.segment_len * (config.memory.gradient_segments + 1)


def extended_context(config: Config) -> int:
    """Return the number of tokens of extended context in front of every training segment."""
    return config.model.ext_len if isinstance(config.model, TransformerXLModelConfig) else 0


def evaluation_extended_context(evaluation: EvaluationConfig, model_ext_len: int) -> int:
    """Return the number of tokens of extended context in front of every segment of validation and test.

    Args:
        evaluation: its `ext_len` counts if given.
        model_ext_len: extended context of the model in training.
    """
    return model_ext_len if evaluation.ext_len is None else evaluation.ext_len


def position_limit(config: Config) -> int | None:
    """Return the largest segment_len + ext_len with trained absolute positions; None if positions are relative.

    For a converted `al_rfou` checkpoint this is the length of its table.
    """
    if not isinstance(config.model, TransformerXLModelConfig) or not encoding_kind(config).absolute:
        return None
    return max(table_len(config) or 0, config.data.segment_len + extended_context(config))


def evaluation_lengths(config: Config) -> dict[str, Any]:
    """Return the lengths of validation and test for `with_lengths`; null ones are those of training.

    Empty for a recurrent model, which has no lengths.

    Raises:
        OptionError: a model is given a length that it does not have, or segment_len + ext_len exceeds `position_limit`.
    """
    if not isinstance(config.model, TransformerXLModelConfig):
        for name in ("mem_len", "ext_len", "same_length", "clamp_len"):
            value = getattr(config.evaluation, name)
            require(value is None, f"evaluation.{name}", value, f"must be null: {config.model.name} has no such length")
        return {}
    evaluation, mem_len = config.evaluation, config.evaluation.mem_len
    mem_len = config.memory.mem_len if mem_len is None else mem_len
    require(mem_len >= 0, "evaluation.mem_len", mem_len, "must be an integer >= 0")
    ext_len, limit = evaluation_extended_context(evaluation, extended_context(config)), position_limit(config)
    if limit is not None and evaluation.segment_len + ext_len > limit:
        name = "ext_len" if evaluation.ext_len else "segment_len"
        allowed = f"segment_len + ext_len = {evaluation.segment_len + ext_len} must be at most {limit}, "
        allowed += f"the positions that encoding={config.encoding.name} was trained with"
        raise OptionError(f"evaluation.{name}", getattr(evaluation, name), allowed)
    lengths: dict[str, Any] = {"mem_len": mem_len, "ext_len": ext_len}
    for name in ("same_length", "clamp_len"):
        value = getattr(evaluation, name)
        lengths[name] = getattr(config.model, name) if value is None else value
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
    evaluation, W = config.evaluation, config.evaluation.segment_len
    mem_len = config.memory.mem_len if evaluation.mem_len is None else evaluation.mem_len
    carried = mem_len > 0 or not isinstance(config.model, TransformerXLModelConfig)
    if carried or evaluation.ext_len is not None or extended_context(config) or W < 2:
        return config
    scored = max(1, W // 4)
    trainer, stop = config.trainer, config.trainer.val_max_segments
    if stop is not None:
        trainer = replace(trainer, val_max_segments=-(-stop * W // scored))
    windows = replace(with_segment_len(evaluation, scored), ext_len=W - scored)
    return replace(config, evaluation=windows, trainer=trainer)


def longest_trained_distance(config: Config) -> int:
    """Return the largest distance between a query and a key in training: memory + extended context + segment - 1.

    With `same_length` and a memory every query sees as many keys as the memory has states: memory - 1 (with `extra_key`
    memory).
    """
    if config.memory.mem_len and getattr(config.model, "same_length", False):
        return config.memory.mem_len - 1 + getattr(config.model, "extra_key", False)
    segment = config.data.segment_len
    return config.memory.mem_len + extended_context(config) + segment - 1


def trained_clamp(config: Config) -> int | None:
    """Return `clamp_len` for attention beyond training's: the run's own, if any, else the longest trained distance.

    A trained table of distances repeats its last row and needs no clamp, unless it has rows that training did not
    reach; its `clamp_len` counts rows, one more than the distance. Absolute positions have no distances, a rotation no
    limit, and an encoding that extrapolates needs none: -1, no clamp. None for a recurrent model.
    """
    if not isinstance(config.model, TransformerXLModelConfig):
        return None
    own = config.model.clamp_len if config.evaluation.clamp_len is None else config.evaluation.clamp_len
    kind, distance = encoding_kind(config), longest_trained_distance(config)
    if config.evaluation.clamp_len is not None or own > 0 or kind.absolute or kind.extrapolates or kind.rotates:
        return own
    if kind.table == "distances":
        return distance + 1 if (table_len(config) or 0) > distance + 1 else -1
    return distance


def farthest_distance(lengths: dict[str, Any], config: Config) -> int:
    """Return the largest distance between a query and a key; arguments as in `clamp_untrained`."""
    memory = lengths["mem_len"]
    if lengths["mem_len"] and lengths["same_length"]:
        return int(memory) - 1 + getattr(config.model, "extra_key", False)
    return int(memory + lengths["ext_len"] + config.evaluation.segment_len) - 1


def clamp_untrained(lengths: dict[str, Any], config: Config) -> dict[str, Any]:
    """Set `clamp_len` to `trained_clamp` in lengths whose attention reaches farther than training's.

    Args:
        lengths: of `evaluation_lengths`.
        config: its `evaluation.segment_len` is the length of the segments.
    """
    if not lengths or farthest_distance(lengths, config) <= longest_trained_distance(config):
        return lengths
    return {**lengths, "clamp_len": trained_clamp(config)}


def protocol_word(lengths: dict[str, Any], is_recurrent: bool = False) -> str:
    """Name the protocol that lengths of `evaluation_lengths` make: where a token's context comes from.

    carried         state of earlier segments: memory, whatever a variant carries, or the state of a recurrent model
    window          extended context in front of every segment
    segment only    only the segment: its first tokens have hardly any
    """
    if not lengths or lengths["mem_len"] or is_recurrent:
        return "carried"
    return "window" if lengths["ext_len"] else "segment only"


def streams_start(lengths: dict[str, Any], memory_start: str) -> str:
    """Name the context of a stream's first token, with lengths of `evaluation_lengths`.

    Args:
        lengths: empty for a recurrent model.
        memory_start: option `memory.start`.
    """
    attends_zeros = lengths.get("mem_len") and memory_start == "zeros"
    return "with a memory of zeros that are attended to" if attends_zeros else "without context"
