"""Losses of one split, kept or summed while they are made, and their values in `evaluation.json`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.files import write_atomically
from txl_lightning.measure.losses import (
    Integers,
    TokenLosses,
    device_of,
    scored_segments,
    segment_losses,
    standard_error,
    standard_error_of_sums,
    text_units,
)
from txl_lightning.measure.protocols import Carried, Protocol
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, shown_units
from txl_lightning.runs.threads_and_precision import autocast

REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}


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

    def write(self, protocol: Protocol, path: Path) -> str:
        """Write the losses, in text order, with their positions; return the name of the file."""
        losses = self.losses(protocol)
        write_atomically(path, lambda path: np.savez(path, nll=losses.nll, positions=losses.positions))
        return path.name


def split_line(split: str, result: dict[str, Any], corpus: str, lengths: str) -> str:
    """Return one line: loss with its standard error, tokens scored, lengths, and tokens left out."""
    unit, *others = shown_units(result)
    error, margin, over = result["standard_error"], "", ""
    if error[unit] is not None:
        margin, over = f" ± {error[unit]:.4f}", f"; ± over {error['units']:,} {error['over']}"
    more = "".join(f", {name} {result[name]:.4f}" for name in others)
    reasons = ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in result["left_out"].items() if n)
    return (
        f"{split}: nll {result['nll']:.4f}, {unit} {result[unit]:.4f}{margin}{more} over "
        f"{result['tokens']:,} tokens of {corpus} ({lengths}; left out: {reasons}{over})"
    )
