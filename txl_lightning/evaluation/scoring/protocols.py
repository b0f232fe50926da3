"""The two protocols of `txl evaluate`: the state carried from segment to segment, or a sliding window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from txl_lightning.config.lengths import encoding_kind, evaluation_lengths, extended_context, position_limit
from txl_lightning.config.schemas import Config, EvaluationConfig, TransformerXLModelConfig
from txl_lightning.data.corpora.corpus import Corpus
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.scoring.sliding import sliding_losses, visible_window
from txl_lightning.evaluation.scoring.token_losses import TokenLosses, token_losses
from txl_lightning.evaluation.scoring.windows import WindowReader, window_reader
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.trained import TrainedModel


@dataclass(frozen=True)
class Protocol(ABC):
    """A way to score a trained model on a split, at certain lengths.

    The attention length of a protocol is how many keys a query attends to, itself among them.

    Args:
        trained: model and configuration of its run.
        corpus: what it is scored on.
    """

    trained: TrainedModel
    corpus: Corpus

    @property
    @abstractmethod
    def knob(self) -> str:
        """The option that makes the attention longer or shorter."""

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The longest attention that this knob can give to the model; None for any."""

    @abstractmethod
    def at_attention_length(self, length: int) -> Protocol:
        """The same with another attention length."""

    @abstractmethod
    def at_training_lengths(self) -> Protocol:
        """The same as the model was trained: Table 6's "PPL init"."""

    @abstractmethod
    def losses(self, split: str) -> TokenLosses:
        """Score a split."""

    @abstractmethod
    def stated(self) -> dict[str, Any]:
        """All lengths, as `evaluation.json` has them."""

    @abstractmethod
    def in_words(self) -> str:
        """Lengths, batch and how streams start, for a line of text."""

    @property
    def streams_start(self) -> str:
        """What the first token of a stream has before it, in words."""
        return "without context"

    @property
    def training_attention_length(self) -> int:
        """Memory, extended context and segment of training together: what a segment's last token attends to.

        Of a recurrent model, which has none, a segment.
        """
        config = self.trained.config
        has_memory = isinstance(config.model, TransformerXLModelConfig)
        return config.data.segment_len + extended_context(config) + (config.memory.mem_len if has_memory else 0)


@dataclass(frozen=True)
class StateReuse(Protocol):
    """Protocol `memory`: B streams in segments, the state carried on (§3.2).

    The attention length A is set by

        mem_len = A with same_length      for distances (relative, shaw), trained with memory or without, and for
                                          absolute positions with memory: every query attends to A keys
                                          (`same_length=false`: to A + 1 … A + segment_len)
        ext_len = A - segment_len         for absolute positions without memory, which cannot use one: segments of
                                          min(A, segment_len) behind their extended context

    Args:
        evaluation: lengths and batch.
        cached: keys and values as memory instead of hidden states, where the model has any: the same
            losses up to rounding, faster.
    """

    evaluation: EvaluationConfig
    cached: bool = True

    @property
    def knob(self) -> str:
        """`mem_len` or `ext_len`."""
        config = self.trained.config
        return "ext_len" if encoding_kind(config).absolute and not config.memory.mem_len else "mem_len"

    @property
    def limit(self) -> int | None:
        """Positions that the model was trained with, if the knob adds positions."""
        return position_limit(self.trained.config) if self.knob == "ext_len" else None

    def at_attention_length(self, length: int) -> StateReuse:
        """The same with another attention length.

        Raises:
            OptionError: the model is recurrent.
        """
        config, ours = self.trained.config, self.evaluation
        if not isinstance(config.model, TransformerXLModelConfig):
            allowed = f"{config.model.name} has no attention; protocol=sliding varies its context"
            raise OptionError("attention_lengths", [length], allowed)
        if self.knob == "mem_len":
            same_length = True if ours.same_length is None else ours.same_length
            return replace(self, evaluation=replace(ours, mem_len=length, same_length=same_length))
        shorter = in_segments(ours, min(length, ours.segment_len))
        return replace(self, evaluation=replace(shorter, mem_len=0, ext_len=length - shorter.segment_len))

    def at_training_lengths(self) -> StateReuse:
        """The same with segment, memory, extended context, mask and clamp of training."""
        config = self.trained.config
        model: Any = config.model
        lengths: dict[str, Any] = {}
        if isinstance(model, TransformerXLModelConfig):
            lengths = {"mem_len": config.memory.mem_len} | {
                name: getattr(model, name) for name in ("ext_len", "same_length", "clamp_len")
            }
        evaluation = in_segments(self.evaluation, config.data.segment_len)
        return replace(self, evaluation=replace(evaluation, **lengths))

    def losses(self, split: str) -> TokenLosses:
        """Score a split, the streams read in the text's order."""
        streams = evaluation_streams(self.corpus, split, self.evaluation, extended_context(self.trained.config))
        return token_losses(self.model(), streams, self.evaluation.max_segments)

    def model(self) -> Any:
        """The model at these lengths."""
        model = self.trained.model
        lengths = evaluation_lengths(self._config)
        if self.cached and isinstance(model, TransformerXL):
            return CachedTransformerXL(model, **lengths)
        return model.with_lengths(**lengths)

    @property
    def _config(self) -> Config:
        return replace(self.trained.config, evaluation=self.evaluation)

    def stated(self) -> dict[str, Any]:
        """Lengths (of attention, if there is any), segment, batch, and what was cached."""
        names = ("segment_len", "batch_size", "max_segments")
        cached = self.cached and isinstance(self.trained.model, TransformerXL)
        lengths = evaluation_lengths(self._config) | {name: getattr(self.evaluation, name) for name in names}
        return {**lengths, "cached": cached}

    @property
    def streams_start(self) -> str:
        """What the first token of a stream has before it."""
        config = self.trained.config
        attends_zeros = isinstance(config.model, TransformerXLModelConfig) and config.memory.start == "zeros"
        return "with a memory of zeros that are attended to" if attends_zeros else "without context"

    def in_words(self) -> str:
        """Memory, extended context, segments and streams."""
        lengths = evaluation_lengths(self._config)
        memory = f"memory {lengths['mem_len']}, " if lengths else ""
        extended = f"extended context {lengths['ext_len']}, " if lengths.get("ext_len") else ""
        segments = f"segments of {self.evaluation.segment_len}, {self.evaluation.batch_size} streams"
        return f"{memory}{extended}{segments} {self.streams_start}"


@dataclass(frozen=True)
class SlidingWindow(Protocol):
    """Protocol `sliding`: the split as one stream, its last tokens scored window by window (`sliding_losses`).

    The attention length is the window: a token attends to all of its window before it.

    Args:
        window: L; None for the attention length of training.
        stride: S; None for half the window.
        clamp_len: distances beyond it share a position; None for the run's own.
        max_windows: stop after so many.
    """

    window: int | None = None
    stride: int | None = None
    clamp_len: int | None = None
    max_windows: int | None = None

    @property
    def knob(self) -> str:
        """`window`."""
        return "window"

    @property
    def limit(self) -> int | None:
        """Positions that the model was trained with, if it has no memory to see beyond them."""
        return self.reader().limit

    def at_attention_length(self, length: int) -> SlidingWindow:
        """The same with another window."""
        return replace(self, window=length)

    def at_training_lengths(self) -> SlidingWindow:
        """The same with a window of training's attention length, and training's clamp."""
        model: Any = self.trained.config.model
        return replace(self, window=None, clamp_len=getattr(model, "clamp_len", None))

    def reader(self) -> WindowReader:
        """How the model reads a window."""
        config = self.trained.config
        clamp_len = config.evaluation.clamp_len if self.clamp_len is None else self.clamp_len
        return window_reader(self.trained.model, position_limit(config), clamp_len)

    def sizes(self) -> tuple[int, int]:
        """L, of what the model sees, and S."""
        reader = self.reader()
        window = reader.visible(self.training_attention_length if self.window is None else self.window)
        stride = max(1, window // 2) if self.stride is None else self.stride
        return visible_window(reader, window, stride), stride

    def losses(self, split: str) -> TokenLosses:
        """Score a split from its first token to its last."""
        tokens = self.corpus.splits[split]
        if split in self.corpus.sentences:  # the last sentence ends with the <S> of none
            tokens = np.append(tokens, tokens[0])
        return sliding_losses(self.reader(), tokens, *self.sizes(), max_windows=self.max_windows)

    def stated(self) -> dict[str, Any]:
        """Window, stride and clamp; one stream."""
        window, stride = self.sizes()
        config: Any = getattr(self.reader().model, "config", None)
        lengths = {"window": window, "stride": stride, "clamp_len": getattr(config, "clamp_len", None)}
        return {**lengths, "batch_size": 1, "max_segments": self.max_windows}

    def in_words(self) -> str:
        """Window, stride and the one stream."""
        window, stride = self.sizes()
        return f"sliding window {window}, stride {stride}, one stream {self.streams_start}"


def in_segments(evaluation: EvaluationConfig, segment_len: int) -> EvaluationConfig:
    """The same with other segments, stopping early, if at all, after the same number of tokens or a few more."""
    stop = evaluation.max_segments
    if stop is not None:
        stop = -(-stop * evaluation.segment_len // segment_len)
    return replace(evaluation, segment_len=segment_len, max_segments=stop)
