"""Scoring protocols of `txl evaluate`: the state carried from segment to segment, or a sliding window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from txl_lightning.config.lengths import (
    clamp_untrained,
    evaluation_lengths,
    extended_context,
    farthest_distance,
    longest_trained_distance,
    position_limit,
    protocol_word,
    streams_start,
    trained_clamp,
    with_segment_len,
)
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.errors import OptionError
from txl_lightning.measure.losses import (
    TokenLosses,
    WindowReader,
    device_of,
    sliding_losses,
    stream_losses,
    visible_window,
    window_reader,
)
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.bfloat16 import autocast
from txl_lightning.runs.models import Model, always_carries_state, carries_state, model_class
from txl_lightning.runs.trained import TrainedModel


@dataclass(frozen=True)
class ScoringProtocol(ABC):
    """Way to score a trained model on a split, at certain lengths.

    The attention length of a protocol is the number of keys a query attends to, the query's own key included.

    Args:
        trained: model and configuration of its run.
        corpus: corpus to score on.
        clamped: attention beyond the longest trained distance is clamped there (`trained_clamp`).
        precision: `32-true` or `bf16-mixed`.
        interpolation: of the positions of an encoding that rotates; 0 for training's, times the farthest distance of
            this protocol relative to the longest trained one if that is larger; None for training's.
    """

    trained: TrainedModel
    corpus: Corpus
    clamped: bool = field(default=False, kw_only=True)
    precision: str = field(default="32-true", kw_only=True)
    interpolation: float | None = field(default=None, kw_only=True)

    @property
    def interpolated(self) -> Model:
        """Model with the interpolation of the protocol.

        Raises:
            OptionError: the interpolation is not allowed, or the model has no encoding that rotates.
        """
        model, interpolation = self.trained.model, self.interpolation
        if interpolation is None:
            return model
        if not isinstance(model, TransformerXL):
            allowed = f"must be null: {self.trained.config.model.name} has no positions"
            raise OptionError("interpolation", interpolation, allowed)
        if interpolation == 0:
            longer = (self.farthest_distance + 1) / (longest_trained_distance(self.trained.config) + 1)
            interpolation = self.trained.config.encoding.interpolation * max(1.0, longer)
        return model.with_lengths(interpolation=interpolation)

    @property
    @abstractmethod
    def farthest_distance(self) -> int:
        """Largest distance between a query and a key."""

    @property
    @abstractmethod
    def length_option(self) -> str:
        """Option that sets the attention length."""

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """Longest attention that `length_option` can give to the model; None for no limit."""

    @abstractmethod
    def at_attention_length(self, length: int) -> ScoringProtocol:
        """Return a copy with another attention length."""

    @abstractmethod
    def at_training_lengths(self) -> ScoringProtocol:
        """Return a copy with the lengths of training: "PPL init" in Table 6."""

    def losses(self, split: str) -> TokenLosses:
        """Score a split in the protocol's precision."""
        with autocast(self.precision, device_of(self.trained.model)):
            return self.score(split)

    @abstractmethod
    def score(self, split: str) -> TokenLosses:
        """Score a split in the precision of the caller's autocast."""

    @abstractmethod
    def first(self, n_tokens: int) -> ScoringProtocol:
        """Return a copy that stops after about this many tokens, in whole segments or windows."""

    def settings(self) -> dict[str, Any]:
        """Return all lengths and the precision, as `evaluation.json` states them.

        Raises:
            OptionError: a length is not allowed.
        """
        model, interpolation = self.interpolated, {}
        if isinstance(model, TransformerXL) and model.config.kind.rotates:
            interpolation = {"interpolation": model.config.interpolation}
        return {**self.lengths(), **interpolation, "precision": self.precision}

    @abstractmethod
    def lengths(self) -> dict[str, Any]:
        """Return all lengths.

        Raises:
            OptionError: a length is not allowed.
        """

    @abstractmethod
    def description(self) -> str:
        """Describe lengths, batch and the start of streams, for a line of text."""

    @property
    def streams_start(self) -> str:
        """Context of the first token of a stream, in words."""
        return "without context"

    @property
    def training_attention_length(self) -> int:
        """Memory + extended context + segment of training: the keys that a segment's last token attends to.

        A recurrent model has no attention; its length is one segment.
        """
        config = self.trained.config
        has_memory = isinstance(config.model, TransformerXLModelConfig)
        return config.data.segment_len + extended_context(config) + (config.memory.mem_len if has_memory else 0)


@dataclass(frozen=True)
class StateReuse(ScoringProtocol):
    """Protocol `carried`: B streams read in segments, the state carried from one to the next (section 3.2).

    The attention length A is set by

        mem_len = A with same_length      models trained with memory: every query attends to A keys
                                          (`same_length=false`: to A + 1 … A + segment_len)
        ext_len = A - S                   models trained without memory: segments of S = max(1, A // 4) tokens after
                                          their extended context, a window recomputed for every segment; every
                                          query attends to A - S + 1 … A keys, also at the lengths of training

    Args:
        evaluation: lengths and batch size.
        cached: keep keys and values as memory instead of hidden states, where the model has any: equal losses
            up to rounding, faster.
    """

    evaluation: EvaluationConfig
    cached: bool = True

    @property
    def length_option(self) -> str:
        return "mem_len" if carries_state(self.trained.config) else "ext_len"

    @property
    def limit(self) -> int | None:
        return position_limit(self.trained.config) if self.length_option == "ext_len" else None

    @property
    def farthest_distance(self) -> int:
        return farthest_distance(self._lengths(), self._config)

    def at_attention_length(self, length: int) -> StateReuse:
        """Return a copy with another attention length.

        Raises:
            OptionError: the model is recurrent, or has memory tokens.
        """
        config = self.trained.config
        if not isinstance(config.model, TransformerXLModelConfig):
            allowed = f"{config.model.name} has no attention; protocol=window varies its context"
            raise OptionError("attention_lengths", [length], allowed)
        if why := model_class(config).cannot.get("attention lengths"):  # type: ignore[union-attr]
            raise OptionError("attention_lengths", [length], f"must be null: {why}; protocol=window varies it")
        return self.with_memory(length) if self.length_option == "mem_len" else self._with_window(length)

    def with_memory(self, length: int) -> StateReuse:
        """Return a copy with a memory of A states; a model that was trained without one can have it as well."""
        given, memory = self.evaluation, self.trained.config.memory
        same_length = True if given.same_length is None else given.same_length
        ext_len = given.ext_len if memory.mem_len else 0
        evaluation = replace(given, mem_len=length, ext_len=ext_len, same_length=same_length)
        return replace(self, evaluation=evaluation, clamped=True)

    def _with_window(self, length: int) -> StateReuse:
        shorter = with_segment_len(self.evaluation, max(1, length // 4))
        evaluation = replace(shorter, mem_len=0, ext_len=length - shorter.segment_len, same_length=False)
        return replace(self, evaluation=evaluation, clamped=True)

    def at_training_lengths(self) -> StateReuse:
        """Return a copy with segment, memory, extended context, mask and clamp of training.

        For a model trained without memory, a window of its attention length.
        """
        config = self.trained.config
        model: Any = config.model
        if not isinstance(model, TransformerXLModelConfig):
            return replace(self, evaluation=with_segment_len(self.evaluation, config.data.segment_len))
        if self.length_option == "ext_len":
            window = self._with_window(self.training_attention_length)
            return replace(window, evaluation=replace(window.evaluation, clamp_len=model.clamp_len), interpolation=None)
        lengths = {name: getattr(model, name) for name in ("ext_len", "same_length", "clamp_len")}
        evaluation = with_segment_len(self.evaluation, config.data.segment_len)
        evaluation = replace(evaluation, mem_len=config.memory.mem_len, **lengths)
        return replace(self, evaluation=evaluation, clamped=False, interpolation=None)

    def score(self, split: str) -> TokenLosses:
        streams = evaluation_streams(self.corpus, split, self.evaluation, extended_context(self.trained.config))
        return stream_losses(self.model(), streams, self.evaluation.max_segments)

    def first(self, n_tokens: int) -> StateReuse:
        given = self.evaluation
        n_segments = -(-n_tokens // (given.batch_size * given.segment_len))
        return replace(self, evaluation=replace(given, max_segments=min(n_segments, given.max_segments or n_segments)))

    def model(self) -> Any:
        """Return the model at these lengths."""
        model: Any = self.interpolated
        lengths = self._lengths()
        if self.cached and can_cache(model):
            return CachedTransformerXL(model, **lengths)
        return model.with_lengths(**lengths)

    @property
    def _config(self) -> Config:
        return replace(self.trained.config, evaluation=self.evaluation)

    def _lengths(self) -> dict[str, Any]:
        lengths = evaluation_lengths(self._config)
        return clamp_untrained(lengths, self._config) if self.clamped else lengths

    def lengths(self) -> dict[str, Any]:
        names = ("segment_len", "batch_size", "max_segments")
        cached = self.cached and can_cache(self.trained.model)
        lengths = self._lengths()
        others = {name: getattr(self.evaluation, name) for name in names}
        word = protocol_word(lengths, always_carries_state(self.trained.config))
        return {"protocol": word, **lengths, **others, "cached": cached}

    @property
    def streams_start(self) -> str:
        return streams_start(self._lengths(), self.trained.config.memory.start)

    def description(self) -> str:
        lengths = self._lengths()
        memory = f"memory {lengths['mem_len']}, " if lengths else ""
        memory = f"beyond={self.trained.config.beyond['name']}, {memory}" if self.trained.config.beyond else memory
        extended = f"extended context {lengths['ext_len']}, " if lengths.get("ext_len") else ""
        segments = f"segments of {self.evaluation.segment_len}, {self.evaluation.batch_size} streams"
        return f"{memory}{extended}{segments} {self.streams_start}"


@dataclass(frozen=True)
class SlidingWindowProtocol(ScoringProtocol):
    """Protocol `window`: the split as one stream, the last tokens of every window scored (`sliding_losses`).

    The attention length is the window: a token attends to all tokens of its window before it.

    Args:
        window: L; None for the attention length of training.
        stride: S; None for half the window.
        clamp_len: larger distances share one position; None for the length of the run's own evaluation, or the
            longest trained distance where the window reaches beyond it.
        max_windows: stop after this many windows.
    """

    window: int | None = None
    stride: int | None = None
    clamp_len: int | None = None
    max_windows: int | None = None
    clamped: bool = field(default=True, kw_only=True)

    @property
    def length_option(self) -> str:
        return "window"

    @property
    def limit(self) -> int | None:
        return self.reader().limit

    @property
    def farthest_distance(self) -> int:
        return (self.training_attention_length if self.window is None else self.window) - 1

    def at_attention_length(self, length: int) -> SlidingWindowProtocol:
        return replace(self, window=length)

    def at_training_lengths(self) -> SlidingWindowProtocol:
        """Return a copy with training's attention length as the window, and training's clamp."""
        model: Any = self.trained.config.model
        return replace(self, window=None, clamp_len=getattr(model, "clamp_len", None), interpolation=None)

    def reader(self) -> WindowReader:
        """Return the reader of the model's windows."""
        config = self.trained.config
        clamp_len = config.evaluation.clamp_len if self.clamp_len is None else self.clamp_len
        if clamp_len is None and self.clamped and self.farthest_distance > longest_trained_distance(config):
            clamp_len = trained_clamp(config)
        trained_len = position_limit(config) or config.data.segment_len + extended_context(config)
        return window_reader(self.interpolated, trained_len, clamp_len)

    def sizes(self) -> tuple[int, int]:
        """Return the window, L, as far as the model can see, and the stride, S.

        Raises:
            OptionError: one of them is not allowed.
        """
        reader = self.reader()
        window = reader.visible(self.training_attention_length if self.window is None else self.window)
        stride = max(1, window // 2) if self.stride is None else self.stride
        return visible_window(reader, window, stride), stride

    def score(self, split: str) -> TokenLosses:
        tokens = self.corpus.splits[split]
        if split in self.corpus.sentences:  # the next sentence's <S> ends a sentence; none follows the last one
            tokens = np.append(tokens, tokens[0])
        return sliding_losses(self.reader(), tokens, *self.sizes(), max_windows=self.max_windows)

    def first(self, n_tokens: int) -> SlidingWindowProtocol:
        n_windows = -(-n_tokens // self.sizes()[1])
        return replace(self, max_windows=min(n_windows, self.max_windows or n_windows))

    def lengths(self) -> dict[str, Any]:
        window, stride = self.sizes()
        config: Any = getattr(self.reader().model, "config", None)
        lengths = {"protocol": "window", "window": window, "stride": stride}
        lengths["clamp_len"] = getattr(config, "clamp_len", None)
        return {**lengths, "batch_size": 1, "max_segments": self.max_windows}

    def description(self) -> str:
        window, stride = self.sizes()
        return f"sliding window {window}, stride {stride}, one stream {self.streams_start}"
