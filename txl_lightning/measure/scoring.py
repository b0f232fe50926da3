"""Score a trained model on a split: the state carried from segment to segment, or a sliding window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.lengths import (
    Lengths,
    clamp_untrained,
    evaluation_lengths,
    in_windows,
    position_limit,
    trained_clamp,
    training_lengths,
    with_segment_len,
)
from txl_lightning.config.schemas import EvaluationConfig, TransformerXLModelConfig
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.data.streams import Streams, streams_of
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError
from txl_lightning.files import write_atomically
from txl_lightning.measure.losses import (
    TokenLosses,
    WindowReader,
    device_of,
    scored_segments,
    segment_losses,
    sliding_losses,
    standard_error,
    standard_error_of_sums,
    stream_losses,
    text_units,
    visible_window,
    window_reader,
)
from txl_lightning.measure.options import EvaluateOptions
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics
from txl_lightning.runs.models import always_carries_state, carries_state, model_class
from txl_lightning.runs.threads_and_precision import autocast, chosen_precision
from txl_lightning.runs.trained import TrainedModel

OF_CARRIED = ("batch_size", "segment_len", "mem_len", "ext_len", "same_length")
OF_WINDOW = ("window", "stride")


@dataclass(frozen=True)
class Scoring:
    """Lengths and precision at which a model scores a corpus.

    The attention length A is the number of keys a query attends to, the query's own key included. It is set by

        mem_len = A with same_length      models trained with memory: every query attends to A keys
                                          (`same_length=false`: to A + 1 … A + segment_len)
        ext_len = A - S                   models trained without memory: segments of S = max(1, A // 4) tokens after
                                          their extended context, a window recomputed for every segment; every
                                          query attends to A - S + 1 … A keys, also at the lengths of training
        window = A                        protocol=window: every query attends to A - stride + 1 … A keys

    Args:
        trained: model and configuration of its run.
        corpus: corpus to score on.
        evaluation: lengths and streams; of these protocol=window reads clamp_len and max_segments (of windows).
        protocol: carried, B streams read in segments, the state carried from one to the next (section 3.2); or window,
            the split as one stream, the last tokens of every window scored (`sliding_losses`).
        window: L; None for the attention length of training.
        stride: S; None for half the window.
        clamped: attention of protocol=carried beyond the longest trained distance is clamped there, as always in
            windows (`trained_clamp`).
        cached: keep keys and values as memory instead of hidden states, where the model has any: equal losses
            up to rounding, faster.
        precision: `32-true` or `bf16-mixed`.
    """

    trained: TrainedModel
    corpus: Corpus
    evaluation: EvaluationConfig
    protocol: str = "carried"
    window: int | None = None
    stride: int | None = None
    clamped: bool = False
    cached: bool = True
    precision: str = "32-true"

    def losses(self, split: str) -> TokenLosses:
        """Score a split."""
        with autocast(self.precision, device_of(self.trained.model)):
            return self.score(split)

    def score(self, split: str) -> TokenLosses:
        """Score a split in the precision of the caller's autocast."""
        if self.protocol == "carried":
            return stream_losses(self.model(), self.streams(split), self.evaluation.max_segments)
        tokens = self.corpus.splits[split]
        if split in self.corpus.sentences:  # the next sentence's <S> ends a sentence; none follows the last one
            tokens = np.append(tokens, tokens[0])
        return sliding_losses(self.reader(), tokens, *self.sizes(), max_windows=self.evaluation.max_segments)

    def streams(self, split: str) -> Streams:
        """Return the streams of a split, for protocol=carried."""
        return streams_of(self.corpus, split, self.evaluation, self.model_lengths().extended)

    def model(self) -> Any:
        """Return the model at the lengths of protocol=carried."""
        model: Any = self.trained.model.with_lengths(**self.model_lengths().keywords())
        return CachedTransformerXL(model) if self.cached and can_cache(model) else model

    def model_lengths(self) -> Lengths:
        """Return the lengths of protocol=carried.

        Raises:
            OptionError: a length is not allowed.
        """
        config = replace(self.trained.config, evaluation=self.evaluation)
        lengths = evaluation_lengths(config)
        return clamp_untrained(lengths, config) if self.clamped else lengths

    def reader(self) -> WindowReader:
        """Return the reader of the model's windows."""
        config, clamp_len = self.trained.config, self.evaluation.clamp_len
        trained = training_lengths(config)
        window = trained.attention_length if self.window is None else self.window
        if clamp_len is None and window - 1 > trained.farthest_distance:
            clamp_len = trained_clamp(config)
        return window_reader(self.trained.model, position_limit(config) or trained.window, clamp_len)

    def sizes(self) -> tuple[int, int]:
        """Return the window, L, as far as the model can see, and the stride, S.

        Raises:
            OptionError: one of them is not allowed.
        """
        reader = self.reader()
        window = reader.visible(self.training_attention_length if self.window is None else self.window)
        stride = max(1, window // 2) if self.stride is None else self.stride
        return visible_window(reader, window, stride), stride

    def settings(self) -> dict[str, Any]:
        """Return all lengths and the precision, as `evaluation.json` states them.

        Raises:
            OptionError: a length is not allowed.
        """
        evaluation, precision = self.evaluation, {"precision": self.precision}
        if self.protocol == "window":
            clamp_len = getattr(getattr(self.reader().model, "config", None), "clamp_len", None)
            sizes = {"protocol": "window", **dict(zip(OF_WINDOW, self.sizes(), strict=True)), "clamp_len": clamp_len}
            return {**sizes, "batch_size": 1, "max_segments": evaluation.max_segments, **precision}
        lengths = self.model_lengths()
        word = lengths.protocol_word(always_carries_state(self.trained.config))
        streams = {name: getattr(evaluation, name) for name in ("segment_len", "batch_size", "max_segments")}
        cached = self.cached and can_cache(self.trained.model)
        return {"protocol": word, **lengths.keywords(), **streams, "cached": cached, **precision}

    @property
    def streams_start(self) -> str:
        """Context of the first token of a stream, in words."""
        lengths = self.model_lengths() if self.protocol == "carried" else Lengths(self.evaluation.segment_len, memory=0)
        return lengths.streams_start(self.trained.config.memory.start)

    def description(self) -> str:
        """Describe lengths, batch and the start of streams, for a line of text."""
        if self.protocol == "window":
            window, stride = self.sizes()
            return f"sliding window {window}, stride {stride}, one stream {self.streams_start}"
        lengths, beyond = self.model_lengths(), self.trained.config.beyond
        parts = [f"beyond={beyond['name']}"] if beyond else []
        parts += [] if lengths.memory is None else [f"memory {lengths.memory}"]
        parts += [f"extended context {lengths.extended}"] if lengths.extended else []
        parts += [f"segments of {self.evaluation.segment_len}", f"{self.evaluation.batch_size} streams"]
        return f"{', '.join(parts)} {self.streams_start}"

    @property
    def length_option(self) -> str:
        """Option that sets the attention length."""
        if self.protocol == "window":
            return "window"
        return "mem_len" if carries_state(self.trained.config) else "ext_len"

    @property
    def limit(self) -> int | None:
        """Longest attention that `length_option` can give to the model; None for no limit."""
        if self.protocol == "window":
            return self.reader().limit
        return position_limit(self.trained.config) if self.length_option == "ext_len" else None

    @property
    def training_attention_length(self) -> int:
        """Attention length of training (`Lengths`); one segment of a recurrent model, which has no attention."""
        return training_lengths(self.trained.config).attention_length

    def at_attention_length(self, length: int) -> Scoring:
        """Return a copy with another attention length.

        Raises:
            OptionError: the model is recurrent, or has memory tokens.
        """
        given, config = self.evaluation, self.trained.config
        if self.protocol == "window":
            return replace(self, window=length)
        if not isinstance(config.model, TransformerXLModelConfig):
            allowed = f"{config.model.name} has no attention; protocol=window varies its context"
            raise OptionError("attention_lengths", [length], allowed)
        if why := model_class(config).cannot.get("attention lengths"):  # type: ignore[union-attr]
            raise OptionError("attention_lengths", [length], f"must be null: {why}; protocol=window varies it")
        if self.length_option == "ext_len":
            given = with_segment_len(given, max(1, length // 4))
            lengths: dict[str, Any] = {"mem_len": 0, "ext_len": length - given.segment_len, "same_length": False}
        else:
            lengths = {"mem_len": length, "same_length": True if given.same_length is None else given.same_length}
            lengths["ext_len"] = given.ext_len if config.memory.mem_len else 0
        return replace(self, evaluation=replace(given, **lengths), clamped=True)

    def at_training_lengths(self) -> Scoring:
        """Return a copy with segment, memory, extended context, mask and clamp of training: "PPL init" in Table 6.

        For a model trained without memory, and for protocol=window, a window of its attention length.
        """
        trained = training_lengths(self.trained.config)
        if self.protocol == "window" or self.length_option == "ext_len":
            window = self.at_attention_length(trained.attention_length)
            return replace(window, evaluation=replace(window.evaluation, clamp_len=trained.clamp))
        evaluation = with_segment_len(self.evaluation, trained.segment)
        return replace(self, evaluation=replace(evaluation, **trained.keywords()), clamped=False)


def scoring_of(trained: TrainedModel, corpus: Corpus, options: EvaluateOptions) -> Scoring:
    """Return the scoring at the given lengths; the others are those of the run's own evaluation."""
    own, precision = trained.config.evaluation, chosen_precision(options.precision, options.accelerator)
    if options.protocol == "window":
        clamp_len = own.clamp_len if options.clamp_len is None else options.clamp_len
        evaluation = replace(own, clamp_len=clamp_len, max_segments=options.max_segments)
        sizes = (options.window, options.stride)
        return Scoring(trained, corpus, evaluation, "window", *sizes, precision=precision)
    given = {name: getattr(options, name) for name in (*OF_CARRIED, "clamp_len", "max_segments")}
    chosen = {name: value for name, value in given.items() if value is not None}
    learns = options.dynamic.lr is not None
    if learns:
        chosen.setdefault("batch_size", 1)
    own = replace(own, max_segments=None) if WHOLE in corpus.splits else own
    limited = with_segment_len(own, chosen.get("segment_len", own.segment_len))
    if limited.max_segments is not None:  # as many tokens with other streams, too
        batch_size = chosen.get("batch_size", own.batch_size)
        limited = replace(limited, max_segments=-(-limited.max_segments * own.batch_size // batch_size))
    evaluation = in_windows(replace(trained.config, evaluation=replace(limited, **chosen))).evaluation
    clamped = not {"segment_len", "mem_len", "ext_len"}.isdisjoint(chosen)
    cached = options.cached and not learns  # keys and values would be those of earlier weights
    return Scoring(trained, corpus, evaluation, clamped=clamped, cached=cached, precision=precision)


@dataclass(frozen=True)
class SplitScores:
    """Losses of one split, and their values in `evaluation.json`.

    A sweep repeats some settings: losses are remembered by settings.

    Args:
        corpus: corpus of the split.
        split: name of the split.
        block_len: tokens in a block, the unit of standard errors of a split without sentences.
    """

    corpus: Corpus
    split: str
    block_len: int
    known: dict[str, TokenLosses] = field(default_factory=dict, repr=False)

    def losses(self, scoring: Scoring) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = str(scoring.settings())
        if settings not in self.known:
            self.known[settings] = scoring.losses(self.split)
        return self.known[settings]

    def values(self, losses: TokenLosses) -> dict[str, Any]:
        """Return the values of losses that `evaluation.json` has for every split and length."""
        return self._values([(losses.nll, losses.positions)], lambda _: (losses.left_out, losses.seconds))

    def running(self, scoring: Scoring) -> dict[str, Any]:
        """Return the `values` of a split for protocol=carried, its losses summed while they are made: none is kept."""
        streams, most = scoring.streams(self.split), scoring.evaluation.max_segments
        started = time.perf_counter()

        def ended(n_tokens: int) -> tuple[dict[str, int], float]:
            left_out = {**streams.left_out, "max_segments": streams.n_targets - n_tokens}
            return left_out, time.perf_counter() - started

        with autocast(scoring.precision, device_of(scoring.trained.model)):
            return self._values(scored_segments(segment_losses(scoring.model(), streams, most), streams), ended)

    def _values(self, losses: Iterable[Any], ended: Callable[[int], tuple[dict[str, int], float]]) -> dict[str, Any]:
        vocabulary, tokens, level = self.corpus.vocabulary, self.corpus.splits[self.split], self.corpus.vocabulary.level
        sums_U, n_U = np.zeros(0), np.zeros(0, np.int64)
        counts: list[tuple[int | None, int | None]] = []
        over = ""
        for nll_P, positions_P in ((nll.ravel(), positions.ravel()) for nll, positions in losses):
            units_P, over = text_units(positions_P, self.corpus.sentences.get(self.split), self.block_len)
            if (more := 1 + int(units_P.max(initial=0)) - len(n_U)) > 0:
                sums_U, n_U = np.pad(sums_U, (0, 2 * more)), np.pad(n_U, (0, 2 * more))
            np.add.at(sums_U, units_P, nll_P)
            np.add.at(n_U, units_P, 1)
            # Sentences in order end with a <S> after the last token: as the first one.
            scored_P, before_P = (without_marks(tokens.take(positions_P - n, mode="wrap")) for n in (0, 1))
            counts.append((vocabulary.count_bytes(scored_P), vocabulary.count_words(scored_P, before_P)))
        n_bytes, n_words = (None if None in of else sum(of) for of in zip(*counts, strict=True))
        n_tokens = int(n_U.sum())
        mean, (error, n_units) = float(sums_U.sum()) / n_tokens, standard_error_of_sums(sums_U, n_U)
        left_out, seconds = ended(n_tokens)
        return {
            **loss_metrics(mean, level, None if n_bytes is None else n_bytes / n_tokens),
            **(
                {}
                if level != "bpe" or not n_words
                else {"ppl_word": loss_metrics(mean * n_tokens / n_words, "word")["ppl"], "words": n_words}
            ),
            "standard_error": {**errors_by_unit(error, mean, level), "over": over, "units": n_units},
            "tokens": n_tokens,
            "bytes": n_bytes,
            "left_out": left_out,
            "seconds": round(seconds, 2),
        }

    def units(self, losses: TokenLosses) -> tuple[NDArray[np.int64], str]:
        """Return the unit of every loss for standard errors, and the name of a unit."""
        return text_units(losses.positions, self.corpus.sentences.get(self.split), self.block_len)

    def difference(self, worse: TokenLosses, better: TokenLosses) -> dict[str, Any] | None:
        """Return the difference of two losses on the same tokens, and its standard error.

        The difficulty of the text is common to both losses and cancels: only the error of the difference tells whether
        they differ. None if they were scored on different tokens (`max_segments`).
        """
        if not np.array_equal(worse.positions, better.positions):
            return None
        level = self.corpus.vocabulary.level
        values, others = loss_metrics(worse.mean, level), loss_metrics(better.mean, level)
        error, _ = standard_error(worse.nll.astype(np.float64) - better.nll, self.units(worse)[0])
        errors = errors_by_unit(error, better.mean, level)
        return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}

    def write(self, scoring: Scoring, path: Path) -> str:
        """Write the losses, in text order, with their positions; return the name of the file."""
        losses = self.losses(scoring)
        write_atomically(path, lambda path: np.savez(path, nll=losses.nll, positions=losses.positions))
        return path.name
