"""From a split's losses to the values in `evaluation.json` and to the printed line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.evaluation.losses import Integers, TokenLosses, standard_error, text_units
from txl_lightning.evaluation.units import UNITS, errors_by_unit, loss_metrics, shown_units
from txl_lightning.files import write_atomically

LINE_WIDTH = 100


@dataclass(frozen=True)
class SplitScores:
    """One split's losses, remembered by their protocol's settings, and their values in `evaluation.json`.

    Args:
        corpus: the split's corpus.
        split: the split's name.
        block_len: tokens in a block, the unit for standard errors in a split without sentences.
        folder: folder for all tokens' losses; None to write none.
    """

    corpus: Corpus
    split: str
    block_len: int
    folder: Path | None = None
    known: dict[str, TokenLosses] = field(default_factory=dict, repr=False)

    def losses(self, protocol: Any) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = str(protocol.settings())
        if settings not in self.known:
            self.known[settings] = protocol.losses(self.corpus, self.split)
        return self.known[settings]

    def row(self, protocol: Any, stem: str | None = None) -> dict[str, Any]:
        """Return the split's values with a protocol, and its settings.

        Args:
            protocol: lengths, streams and precision.
            stem: ends the name of the losses file, if it is written; None to write none.
        """
        losses = self.losses(protocol)
        row = self.values(losses)
        if stem is not None and self.folder is not None:
            row["losses"] = f"losses_{self.split}{stem}.npz"
            arrays: Any = {"nll": losses.nll, "positions": losses.positions}
            write_atomically(self.folder / row["losses"], lambda path: np.savez(path, **arrays))
        row["evaluation"] = protocol.settings()
        return row

    def values(self, losses: TokenLosses) -> dict[str, Any]:
        """Return the values that `evaluation.json` has for every split and length."""
        vocabulary = self.corpus.vocabulary
        n_tokens = len(losses.nll)
        tokens = self._tokens(losses.positions)
        n_bytes = vocabulary.count_bytes(tokens)
        bytes_per_token = None if n_bytes is None else n_bytes / n_tokens
        values: dict[str, Any] = loss_metrics(
            losses.mean,
            vocabulary.level,
            bytes_per_token,
        )
        if vocabulary.level == "bpe":
            n_words = vocabulary.count_words(tokens, self._tokens(losses.positions - 1))
            if n_words:
                values["ppl_word"] = loss_metrics(losses.mean * n_tokens / n_words, "word")["ppl"]
                values["words"] = n_words
        sentences = self.corpus.sentences.get(self.split)
        units_P, unit_name = text_units(losses.positions, sentences, self.block_len)
        error, n_units = standard_error(losses.nll, units_P)
        errors = errors_by_unit(error, losses.mean, vocabulary.level)
        values["standard_error"] = {**errors, "over": unit_name, "units": n_units}
        values["tokens"] = n_tokens
        values["bytes"] = n_bytes
        values["left_out"] = losses.left_out
        values["seconds"] = round(losses.seconds, 2)
        return values

    def _tokens(self, positions: Integers) -> Integers:
        """Return the token numbers at positions; a split's last sentence is followed by the first one's `<S>`."""
        return without_marks(self.corpus.splits[self.split].take(positions, mode="wrap"))


def score_line(title: str, values: Mapping[str, Any]) -> str:
    """Return one line: the loss in words with its standard error, and the loss at training's lengths.

    test: 1.9460 ± 0.0123 bits per byte (training's lengths: 1.9871)

    Further units are left out if the line is too long.
    """
    line = f"{title}: "
    ending = ""
    for place, unit in enumerate(shown_units(values)):
        number = UNITS[unit].number(values[unit])
        error = values["standard_error"].get(unit)
        if error is not None:
            number += f" ± {UNITS[unit].number(error)}"
        words = UNITS[unit].words.format(number)
        if place == 0:
            line += words
            if "init" in values:
                ending = f" (training's lengths: {UNITS[unit].number(values['init'][unit])})"
        elif len(f"{line}, {words}{ending}") <= LINE_WIDTH:
            line += f", {words}"
    return line + ending


def notes(entries: Mapping[str, Mapping[str, Any]], corpus: Corpus) -> list[str]:
    """Return lines on what was scored and how: tokens, tokens left out, the settings, and the unit behind ±."""
    lines = []
    how = ""
    for split, entry in entries.items():
        what = f"{corpus.name}, {split}{corpus.unknown_share(split)}"
        n_left_out = sum(entry["left_out"].values())
        lines += wrap(f"{what}: {entry['tokens']:,} tokens scored, {n_left_out:,} left out")
        over = entry["standard_error"]["over"]
        how = f"± is a standard error over {over}; {describe(entry['evaluation'])}"
    return lines + wrap(how)


def wrap(line: str) -> list[str]:
    """Divide a line at spaces, so that it fits on a terminal."""
    return textwrap.wrap(line, LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def describe(settings: Mapping[str, Any]) -> str:
    """Return settings in a line: options with their values, without those that have no effect."""
    shown = []
    for name, value in settings.items():
        if value is True:
            shown.append(name)
        elif value not in (None, False, -1, []):
            shown.append(f"{name} {value}")
    return ", ".join(shown)
