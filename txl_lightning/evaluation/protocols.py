"""Protocols: ways to score a trained model on a split of a corpus, each with the lengths that it has.

    Carried     B streams read in segments, the state carried from one to the next (section 3.2)
    Windows     the split as one stream, the last tokens of every window scored from a fresh state (`sliding_losses`)

`units.Fresh` and `dynamic_evaluation.DynamicEvaluation` read as a `Carried` does, and have the same methods.
`SplitScores` has the losses of one split, and their values in `evaluation.json`.

The attention length A is the number of keys a query attends to, the query's own key included. It is set by

    mem_len = A with same_length      models trained with memory: every query attends to A keys
                                      (`same_length=false`: to A + 1 … A + segment_len)
    ext_len = A - S                   models trained without memory: segments of S = max(1, A // 4) tokens after
                                      their extended context, a window recomputed for every segment; every
                                      query attends to A - S + 1 … A keys, also at the lengths of training
    window = A                        `Windows`: every query attends to A - stride + 1 … A keys
"""

from __future__ import annotations

import time
import typing
from collections.abc import Iterable, Mapping
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
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.streams import Streams, streams_of
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.evaluation.losses import (
    BySegment,
    Integers,
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
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.files import write_atomically
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.runs.hardware import autocast, chosen_precision
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, shown_units
from txl_lightning.runs.models import always_carries_state, carries_state, model_class
from txl_lightning.runs.trained import TrainedModel

OF_CARRIED = ("batch_size", "segment_len", "mem_len", "ext_len", "same_length")
OF_WINDOWS = ("window", "stride")
REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}


class Protocol(typing.Protocol):
    """Methods of every protocol."""

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        """Score a split."""

    def settings(self) -> dict[str, Any]:
        """Return all lengths and the precision, as `evaluation.json` states them.

        Raises:
            OptionError: a length is not allowed.
        """


@dataclass(frozen=True)
class Carried:
    """Streams read in segments, the state carried from one to the next.

    Args:
        trained: model and config of its run.
        evaluation: lengths and streams.
        clamped: attention beyond the longest trained distance is clamped there (`trained_clamp`).
        cached: keep keys and values as memory instead of hidden states, where the model has any: equal losses up to
            rounding, faster.
        precision: `32-true` or `bf16-mixed`.
    """

    trained: TrainedModel
    evaluation: EvaluationConfig
    clamped: bool = False
    cached: bool = True
    precision: str = "32-true"

    def losses(self, corpus: Corpus, split: str, by_segment: BySegment = segment_losses) -> TokenLosses:
        """Score a split; `by_segment` as in `stream_losses`."""
        with autocast(self.precision, device_of(self.trained.model)):
            return stream_losses(self.model(), self.streams(corpus, split), self.evaluation.max_segments, by_segment)

    def streams(self, corpus: Corpus, split: str) -> Streams:
        """Return the streams of a split."""
        return streams_of(corpus, split, self.evaluation, self.lengths.extended)

    def model(self) -> Any:
        """Return the model at these lengths."""
        model: Any = self.trained.model.with_lengths(**self.lengths.keywords())
        return CachedTransformerXL(model) if self.cached and can_cache(model) else model

    @property
    def lengths(self) -> Lengths:
        """Lengths of the model.

        Raises:
            OptionError: a length is not allowed.
        """
        config = replace(self.trained.config, evaluation=self.evaluation)
        lengths = evaluation_lengths(config)
        return clamp_untrained(lengths, config) if self.clamped else lengths

    def settings(self) -> dict[str, Any]:
        word = self.lengths.protocol_word(always_carries_state(self.trained.config))
        streams = {name: getattr(self.evaluation, name) for name in ("segment_len", "batch_size", "max_segments")}
        cached, variant = self.cached and can_cache(self.trained.model), self.trained.config.variant.get("name")
        of_model = {"protocol": word, **({"variant": variant} if variant else {}), **self.lengths.keywords()}
        return {**of_model, **streams, "cached": cached, "precision": self.precision}

    @property
    def length_option(self) -> str:
        """Option that sets the attention length."""
        return "mem_len" if carries_state(self.trained.config) else "ext_len"

    @property
    def limit(self) -> int | None:
        """Longest attention that `length_option` can give to the model; None for no limit."""
        return position_limit(self.trained.config) if self.length_option == "ext_len" else None

    @property
    def fixed(self) -> str | None:
        """Reason why the attention length cannot be varied; None if it can."""
        config = self.trained.config
        if not isinstance(config.model, TransformerXLModelConfig):
            return f"{config.model.name} has no attention; protocol=window varies its context"
        why = model_class(config).cannot.get("attention lengths")  # type: ignore[union-attr]
        return why and f"must be null: {why}; protocol=window varies it"

    def at_attention_length(self, length: int) -> Carried:
        """Return a copy with another attention length, unless it is `fixed`."""
        given = self.evaluation
        if self.length_option == "ext_len":
            given = with_segment_len(given, max(1, length // 4))
            lengths: dict[str, Any] = {"mem_len": 0, "ext_len": length - given.segment_len, "same_length": False}
        else:
            lengths = {"mem_len": length, "same_length": True if given.same_length is None else given.same_length}
            lengths["ext_len"] = given.ext_len if self.trained.config.memory.mem_len else 0
        return replace(self, evaluation=replace(given, **lengths), clamped=True)

    def at_training_lengths(self) -> Carried:
        """Return a copy with segment, memory, extended context, mask and clamp of training: "PPL init" in Table 6.

        For a model trained without memory a window of its attention length.
        """
        trained = training_lengths(self.trained.config)
        if self.length_option == "ext_len":
            window = self.at_attention_length(trained.attention_length)
            return replace(window, evaluation=replace(window.evaluation, clamp_len=trained.clamp))
        evaluation = with_segment_len(self.evaluation, trained.segment)
        return replace(self, evaluation=replace(evaluation, **trained.keywords()), clamped=False)


@dataclass(frozen=True)
class Windows:
    """Windows over a split as one stream, each from a fresh state, its last tokens scored (`sliding_losses`).

    Attention beyond the longest trained distance is clamped there, as in `Carried.clamped`.

    Args:
        trained: model and config of its run.
        length: L, the attention length, which the model may limit.
        given_stride: S; None for half of what the model sees of the window.
        clamp_len: larger distances share one position; None for `trained_clamp` in windows longer than those of
            training.
        max_segments: stop after this many windows.
        precision: `32-true` or `bf16-mixed`.
    """

    trained: TrainedModel
    length: int
    given_stride: int | None = None
    clamp_len: int | None = None
    max_segments: int | None = None
    precision: str = "32-true"
    fixed = None
    length_option = "window"

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        tokens = corpus.splits[split]
        if split in corpus.sentences:  # the next sentence's <S> ends a sentence; none follows the last one
            tokens = np.append(tokens, tokens[0])
        with autocast(self.precision, device_of(self.trained.model)):
            return sliding_losses(self.reader(), tokens, *self.sizes(), max_windows=self.max_segments)

    def reader(self) -> WindowReader:
        """Return the reader of the model's windows."""
        config, clamp_len = self.trained.config, self.clamp_len
        trained = training_lengths(config)
        if clamp_len is None and self.length - 1 > trained.farthest_distance:
            clamp_len = trained_clamp(config)
        return window_reader(self.trained.model, position_limit(config) or trained.window, clamp_len)

    def sizes(self) -> tuple[int, int]:
        """Return the window, L, as far as the model can see, and the stride, S.

        Raises:
            OptionError: one of them is not allowed.
        """
        return visible_window(self.reader(), self.length, self.given_stride)

    def settings(self) -> dict[str, Any]:
        clamp_len = getattr(getattr(self.reader().model, "config", None), "clamp_len", None)
        sizes = {**dict(zip(OF_WINDOWS, self.sizes(), strict=True)), "clamp_len": clamp_len, "batch_size": 1}
        return {"protocol": "window", **sizes, "max_segments": self.max_segments, "precision": self.precision}

    @property
    def limit(self) -> int | None:
        """Longest attention of the model; None for no limit."""
        return self.reader().limit

    def at_attention_length(self, length: int) -> Windows:
        """Return a copy with another attention length."""
        return replace(self, length=length)

    def at_training_lengths(self) -> Windows:
        """Return a copy with attention length and clamp of training."""
        trained = training_lengths(self.trained.config)
        return replace(self, length=trained.attention_length, clamp_len=trained.clamp)


def protocol_of(trained: TrainedModel, options: EvaluateOptions, whole: bool) -> Carried | Windows:
    """Return the protocol at the given lengths; the others are those of the run's own evaluation, windows' of training.

    Args:
        trained: the model.
        options: options of the command.
        whole: the whole of a text is read, also where the run's own evaluation stops after `max_segments`.
    """
    own, precision = trained.config.evaluation, chosen_precision(options.precision, options.accelerator)
    if options.protocol == "window":
        length = training_lengths(trained.config).attention_length if options.window is None else options.window
        clamp_len = own.clamp_len if options.clamp_len is None else options.clamp_len
        return Windows(trained, length, options.stride, clamp_len, options.max_segments, precision)
    given = {name: getattr(options, name) for name in (*OF_CARRIED, "clamp_len", "max_segments")}
    chosen = {name: value for name, value in given.items() if value is not None}
    learns = options.dynamic.lr is not None
    if learns:
        chosen.setdefault("batch_size", 1)
    own = replace(own, max_segments=None) if whole else own
    limited = with_segment_len(own, chosen.get("segment_len", own.segment_len))
    if limited.max_segments is not None:  # as many tokens with other streams, too
        batch_size = chosen.get("batch_size", own.batch_size)
        limited = replace(limited, max_segments=-(-limited.max_segments * own.batch_size // batch_size))
    evaluation = in_windows(replace(trained.config, evaluation=replace(limited, **chosen))).evaluation
    clamped = not {"segment_len", "mem_len", "ext_len"}.isdisjoint(chosen)
    cached = options.cached and not learns  # keys and values would be those of earlier weights
    return Carried(trained, evaluation, clamped, cached, precision)


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

    def losses(self, protocol: Protocol) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = str(protocol.settings())
        if settings not in self.known:
            self.known[settings] = protocol.losses(self.corpus, self.split)
        return self.known[settings]

    def values(self, losses: TokenLosses) -> dict[str, Any]:
        """Return the values of losses that `evaluation.json` has for every split and length."""
        values = self._values([(losses.nll, losses.positions)])
        return {**values, "left_out": losses.left_out, "seconds": round(losses.seconds, 2)}

    def running(self, carried: Carried) -> dict[str, Any]:
        """Return the `values` of the split, its losses summed while they are made: none is kept."""
        started, streams = time.perf_counter(), carried.streams(self.corpus, self.split)
        with autocast(carried.precision, device_of(carried.trained.model)):
            by_segment = segment_losses(carried.model(), streams, carried.evaluation.max_segments)
            values = self._values(scored_segments(by_segment, streams))
        left_out = {**streams.left_out, "max_segments": streams.n_targets - values["tokens"]}
        return {**values, "left_out": left_out, "seconds": round(time.perf_counter() - started, 2)}

    def _values(self, losses: Iterable[tuple[NDArray[np.floating], Integers]]) -> dict[str, Any]:
        vocabulary, tokens, level = self.corpus.vocabulary, self.corpus.splits[self.split], self.corpus.vocabulary.level
        (last,), over = self.units(np.array([len(tokens)]))
        sums_U, n_U = np.zeros(last + 1), np.zeros(last + 1, np.int64)
        counts: list[tuple[int | None, int | None]] = []
        for nll_P, positions_P in ((nll.ravel(), positions.ravel()) for nll, positions in losses):
            units_P, _ = self.units(positions_P)
            np.add.at(sums_U, units_P, nll_P)
            np.add.at(n_U, units_P, 1)
            # Sentences in order end with a <S> after the last token: as the first one.
            scored_P, before_P = (without_marks(tokens.take(positions_P - n, mode="wrap")) for n in (0, 1))
            counts.append((vocabulary.count_bytes(scored_P), vocabulary.count_words(scored_P, before_P)))
        n_bytes, n_words = (None if None in of else sum(of) for of in zip(*counts, strict=True))
        n_tokens = int(n_U.sum())
        mean, (error, n_units) = float(sums_U.sum()) / n_tokens, standard_error_of_sums(sums_U, n_U)
        values: dict[str, Any] = loss_metrics(mean, level, None if n_bytes is None else n_bytes / n_tokens)
        if level == "bpe" and n_words:
            values |= {"ppl_word": loss_metrics(mean * n_tokens / n_words, "word")["ppl"], "words": n_words}
        errors = {**errors_by_unit(error, mean, level), "over": over, "units": n_units}
        return {**values, "standard_error": errors, "tokens": n_tokens, "bytes": n_bytes}

    def written(self, protocol: Protocol, stem: str, files: Path | None) -> dict[str, str]:
        """Write the losses, in text order, with their positions; return the entry with the file's name, if `files`."""
        if files is None:
            return {}
        name, losses = f"losses_{self.split}{stem}.npz", self.losses(protocol)
        arrays: Any = {"nll": losses.nll, "positions": losses.positions}
        write_atomically(files / name, lambda path: np.savez(path, **arrays))
        return {"losses": name}

    def units(self, positions: Integers) -> tuple[Integers, str]:
        """Return the unit of every position for standard errors, and the name of a unit."""
        return text_units(positions, self.corpus.sentences.get(self.split), self.block_len)

    def difference(self, worse: TokenLosses, better: TokenLosses) -> dict[str, Any] | None:
        """Return the difference of two losses on the same tokens, and its standard error.

        The difficulty of the text is common to both losses and cancels: only the error of the difference tells whether
        they differ. None if they were scored on different tokens (`max_segments`).
        """
        if not np.array_equal(worse.positions, better.positions):
            return None
        level = self.corpus.vocabulary.level
        values, others = loss_metrics(worse.mean, level), loss_metrics(better.mean, level)
        error, _ = standard_error(worse.nll.astype(np.float64) - better.nll, self.units(worse.positions)[0])
        errors = errors_by_unit(error, better.mean, level)
        return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}


def described(settings: Mapping[str, Any]) -> str:
    """Return settings in a line: options with their values, those alone that have an effect."""
    shown = {name: value for name, value in settings.items() if value not in (None, False, -1, [])}
    return ", ".join(name if value is True else f"{name} {value}" for name, value in shown.items())


def split_line(split: str, result: dict[str, Any], corpus: str, settings: Mapping[str, Any]) -> str:
    """Return one line: loss with its standard error, tokens scored, settings, and tokens left out."""
    unit, *others = shown_units(result)
    error, margin, over = result["standard_error"], "", ""
    if error[unit] is not None:
        margin, over = f" ± {error[unit]:.4f}", f"; ± over {error['units']:,} {error['over']}"
    more = "".join(f", {name} {result[name]:.4f}" for name in others)
    reasons = ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in result["left_out"].items() if n)
    return (
        f"{split}: nll {result['nll']:.4f}, {unit} {result[unit]:.4f}{margin}{more} over "
        f"{result['tokens']:,} tokens of {corpus} ({described(settings)}; left out: {reasons}{over})"
    )
