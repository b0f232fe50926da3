"""How a trained model reads a split's streams: its lengths, its memory, its precision.

The attention length A is the number of keys a query attends to, including the query's key. It is set by

    mem_len = A with same_length      models trained with memory: every query attends to A keys
                                      (`same_length=false`: to A + 1 … A + segment_len)
    ext_len = A - S                   models trained without memory: segments of S = max(1, A // 4) tokens after
                                      their extended context, a window recomputed for every segment; every
                                      query attends to A - S + 1 … A keys, also at the lengths of training
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from txl_lightning.config.lengths import (
    Lengths,
    clamp_untrained,
    evaluation_lengths,
    in_windows,
    position_limit,
    training_lengths,
    with_segment_len,
)
from txl_lightning.config.schemas import EvaluationConfig
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.streams import Streams, streams_of
from txl_lightning.evaluation.hardware import autocast, chosen_precision
from txl_lightning.evaluation.losses import TokenLosses, device_of, stream_losses
from txl_lightning.evaluation.models import always_carries_state, carries_state
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache

# Options that can bring attention beyond the trained distances.
LONGER = {"segment_len", "mem_len", "ext_len"}


@dataclass(frozen=True)
class Protocol:
    """Streams read in segments, the state carried from one to the next.

    Args:
        trained: a run's model and config.
        evaluation: lengths and streams.
        clamped: clamp attention beyond the longest trained distance (`trained_clamp`).
        cached: keep keys and values as memory instead of hidden states, where the model has any: equal losses up to
            rounding, faster.
        precision: `32-true` or `bf16-mixed`.
    """

    trained: TrainedModel
    evaluation: EvaluationConfig
    clamped: bool = False
    cached: bool = True
    precision: str = "32-true"

    @property
    def lengths(self) -> Lengths:
        """The model's lengths.

        Raises:
            OptionError: a length is not allowed.
        """
        config = replace(self.trained.config, evaluation=self.evaluation)
        lengths = evaluation_lengths(config)
        if self.clamped:
            return clamp_untrained(lengths, config)
        return lengths

    def model(self) -> Any:
        """Return the model at these lengths."""
        model: Any = self.trained.model.with_lengths(**self.lengths.keywords())
        if self.cached and can_cache(model):
            return CachedTransformerXL(model)
        return model

    def streams(self, corpus: Corpus, split: str) -> Streams:
        """Return a split's streams."""
        return streams_of(corpus, split, self.evaluation, self.lengths.ext_len)

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        """Score a split."""
        streams = self.streams(corpus, split)
        with autocast(self.precision, device_of(self.trained.model)):
            return stream_losses(self.model(), streams, self.evaluation.max_segments, split)

    def settings(self) -> dict[str, Any]:
        """Return all lengths and the precision, as `evaluation.json` states them.

        Raises:
            OptionError: a length is not allowed.
        """
        config = self.trained.config
        lengths = self.lengths
        return {
            "protocol": lengths.protocol_word(always_carries_state(config)),
            "variant": config.variant.get("name"),
            **lengths.keywords(),
            "segment_len": lengths.segment_len,
            "batch_size": self.evaluation.batch_size,
            "max_segments": self.evaluation.max_segments,
            "cached": self.cached and can_cache(self.trained.model),
            "precision": self.precision,
        }

    @property
    def length_option(self) -> str:
        """Option that sets the attention length."""
        if carries_state(self.trained.config):
            return "mem_len"
        return "ext_len"

    def within_limit(self, length: int) -> int:
        """Return an attention length, or the longest that `length_option` can give to the model."""
        limit = position_limit(self.trained.config)
        if limit is None or self.length_option == "mem_len":
            return length
        return min(length, limit)

    @property
    def fixed(self) -> str | None:
        """Reason why the attention length cannot be varied; None if it can."""
        recurrent = {"attention lengths": f"{self.trained.config.model.name} has no attention"}
        cannot: dict[str, str] = getattr(
            self.trained.model,
            "cannot",
            recurrent,
        )
        return cannot.get("attention lengths")

    def at_attention_length(self, length: int) -> Protocol:
        """Return a copy with another attention length, unless it is `fixed`."""
        evaluation = self.evaluation
        if self.length_option == "ext_len":
            evaluation = with_segment_len(evaluation, max(1, length // 4))
            ext_len = length - evaluation.segment_len
            evaluation = replace(evaluation, mem_len=0, ext_len=ext_len, same_length=False)
        else:
            same_length = evaluation.same_length is not False
            evaluation = replace(evaluation, mem_len=length, same_length=same_length)
            if not self.trained.config.memory.mem_len:
                evaluation.ext_len = 0
        return replace(self, evaluation=evaluation, clamped=True)

    def at_training_lengths(self) -> Protocol:
        """Return a copy with training's segment, memory, extended context, mask and clamp: "PPL init" in Table 6.

        For a model trained without memory: a window as long as its attention.
        """
        trained = training_lengths(self.trained.config)
        if self.length_option == "ext_len":
            window = self.at_attention_length(trained.attention_length)
            return replace(
                window, evaluation=replace(window.evaluation, clamp_len=trained.clamp_len)
            )
        evaluation = with_segment_len(self.evaluation, trained.segment_len)
        evaluation = replace(evaluation, **trained.keywords())
        return replace(self, evaluation=evaluation, clamped=False)


def given_lengths(options: Any) -> dict[str, Any]:
    """Return the lengths and streams that a command's options give."""
    given = {}
    for option in fields(EvaluationConfig):
        value = getattr(options, option.name, None)
        if value is not None:
            given[option.name] = value
    return given


def with_lengths(trained: TrainedModel, options: Any, whole: bool, **fixed: Any) -> Protocol:
    """Return the protocol at a command's lengths; other lengths are the run's.

    Where only the run limits the segments, other segments cover as many tokens.

    Args:
        trained: the model.
        options: options with some lengths.
        whole: read all of a text, even where the run's evaluation stops after `max_segments`.
        fixed: lengths that the command sets without an option.
    """
    given = {**given_lengths(options), **fixed}
    evaluation = trained.config.evaluation
    if whole:
        evaluation = replace(evaluation, max_segments=None)
    evaluation = with_segment_len(evaluation, given.get("segment_len", evaluation.segment_len))
    config = replace(trained.config, evaluation=replace(evaluation, **given))
    clamped = not LONGER.isdisjoint(given)
    return Protocol(trained, in_windows(config).evaluation, clamped)


def protocol_from_options(trained: TrainedModel, options: EvaluateOptions, whole: bool) -> Protocol:
    """Return the protocol for `txl evaluate`: see `with_lengths`."""
    protocol = with_lengths(trained, options, whole)
    precision = chosen_precision(options.precision, options.accelerator)
    return replace(protocol, cached=options.cached, precision=precision)
