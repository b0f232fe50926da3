"""Lengths that follow from a configuration: of position tables, of evaluation."""

from __future__ import annotations

from typing import Any

from txl_lightning.config.encoding_kinds import EncodingKind, kind_named
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.errors import OptionError, require


def encoding_kind(config: Config) -> EncodingKind:
    """What of the chosen encoding, the package's or one's own, is known without a model.

    Raises:
        OptionError: there is no such encoding.
    """
    return kind_named(config.encoding.name)


def table_len(config: Config) -> int | None:
    """Rows of a trained position table: as given, or what training needs."""
    table = encoding_kind(config).table
    if config.encoding.table_len is not None or table is None:
        return config.encoding.table_len
    positions = config.data.segment_len + extended_context(config)
    return positions + config.memory.mem_len if table == "distances" else positions


def extended_context(config: Config) -> int:
    """Tokens of extended context that the training streams put in front of every segment."""
    return config.model.ext_len if isinstance(config.model, TransformerXLModelConfig) else 0


def evaluation_extended_context(evaluation: EvaluationConfig, models_own: int) -> int:
    """And those in front of the segments of validation and test."""
    return models_own if evaluation.ext_len is None else evaluation.ext_len


def position_limit(config: Config) -> int | None:
    """The longest segment, extended context included, whose absolute positions were trained; None for distances.

    A converted `al_rfou` was trained as far as its table reaches.
    """
    if not isinstance(config.model, TransformerXLModelConfig) or not encoding_kind(config).absolute:
        return None
    return max(table_len(config) or 0, config.data.segment_len + extended_context(config))


def evaluation_lengths(config: Config) -> dict[str, Any]:
    """Lengths for `with_lengths` in validation and test, the open ones filled in (paper's train.py).

    Nothing for a recurrent model, which has no lengths.

    Raises:
        OptionError: a recurrent model is given one, or segment and extended context exceed `position_limit`.
    """
    if not isinstance(config.model, TransformerXLModelConfig):
        for name in ("mem_len", "ext_len", "same_length", "clamp_len"):
            value = getattr(config.evaluation, name)
            require(value is None, f"evaluation.{name}", value, f"must be null: {config.model.name} has no such length")
        return {}
    evaluation, mem_len = config.evaluation, config.evaluation.mem_len
    if mem_len is None and config.memory.mem_len == 0:
        mem_len = 0
    elif mem_len is None:
        mem_len = max(0, config.memory.mem_len + config.data.segment_len - evaluation.segment_len)
    if mem_len < 0:
        raise OptionError("evaluation.mem_len", mem_len, "must be an integer >= 0")
    ext_len, limit = evaluation_extended_context(evaluation, extended_context(config)), position_limit(config)
    if limit is not None and evaluation.segment_len + ext_len > limit:
        named = "ext_len" if evaluation.ext_len else "segment_len"
        allowed = f"segment_len + ext_len = {evaluation.segment_len + ext_len} must be at most {limit}, "
        allowed += f"the positions that encoding={config.encoding.name} was trained with"
        raise OptionError(f"evaluation.{named}", getattr(evaluation, named), allowed)
    lengths: dict[str, Any] = {"mem_len": mem_len, "ext_len": ext_len}
    for name in ("same_length", "clamp_len"):
        value = getattr(evaluation, name)
        lengths[name] = getattr(config.model, name) if value is None else value
    return lengths
