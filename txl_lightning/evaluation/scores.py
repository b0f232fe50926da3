"""From the losses of a split to the values of `evaluation.json` and to the line that is printed."""

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
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.units import errors_by_unit, loss_metrics, shown_units
from txl_lightning.files import write_atomically

LINE_WIDTH = 100
# Words of a unit, `{}` for the value, and the digits after its point.
SHOWN = {
    "bpc": ("{} bits per character", 4),
    "ppl": ("perplexity {}", 2),
    "bpt": ("{} bits per token", 4),
    "bpb": ("{} bits per byte", 4),
    "ppl_word": ("{} per word", 1),
}


@dataclass(frozen=True)
class SplitScores:
    """Losses of one split, remembered by the settings of their protocol, and their values in `evaluation.json`.

    Args:
        corpus: corpus of the split.
        split: name of the split.
        block_len: tokens in a block, the unit of standard errors of a split without sentences.
    """

    corpus: Corpus
    split: str
    block_len: int
    known: dict[str, TokenLosses] = field(default_factory=dict, repr=False)

    def losses(self, protocol: Any) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = str(protocol.settings())
        if settings not in self.known:
            self.known[settings] = protocol.losses(self.corpus, self.split)
        return self.known[settings]

    def values(self, losses: TokenLosses) -> dict[str, Any]:
        """Return the values of losses that `evaluation.json` has for every split and length."""
        vocabulary = self.corpus.vocabulary
        n_tokens = len(losses.nll)
        n_bytes = vocabulary.count_bytes(self._tokens(losses.positions))
        bytes_per_token = None
        if n_bytes is not None:
            bytes_per_token = n_bytes / n_tokens
        values: dict[str, Any] = loss_metrics(losses.mean, vocabulary.level, bytes_per_token)
        if vocabulary.level == "bpe":
            n_words = vocabulary.count_words(
                self._tokens(losses.positions), self._tokens(losses.positions - 1)
            )
            if n_words:
                values["ppl_word"] = loss_metrics(losses.mean * n_tokens / n_words, "word")["ppl"]
                values["words"] = n_words
        units_P, unit_name = self._units(losses.positions)
        error, n_units = standard_error(losses.nll, units_P)
        errors: dict[str, Any] = dict(errors_by_unit(error, losses.mean, vocabulary.level))
        errors["over"] = unit_name
        errors["units"] = n_units
        values["standard_error"] = errors
        values["tokens"] = n_tokens
        values["bytes"] = n_bytes
        values["left_out"] = losses.left_out
        values["seconds"] = round(losses.seconds, 2)
        return values

    def row(self, protocol: Protocol) -> dict[str, Any]:
        """Return the values of the split with a protocol, and its settings."""
        row = self.values(self.losses(protocol))
        row["evaluation"] = protocol.settings()
        return row

    def write_losses(self, losses: TokenLosses, stem: str, directory: Path) -> str:
        """Write losses and positions, in text order; return the name of the file."""
        name = f"losses_{self.split}{stem}.npz"
        arrays: Any = {"nll": losses.nll, "positions": losses.positions}
        write_atomically(directory / name, lambda path: np.savez(path, **arrays))
        return name

    def _units(self, positions: Integers) -> tuple[Integers, str]:
        return text_units(positions, self.corpus.sentences.get(self.split), self.block_len)

    def _tokens(self, positions: Integers) -> Integers:
        """Return the token numbers at positions; after the last sentence of a split comes the `<S>` of the first."""
        return without_marks(self.corpus.splits[self.split].take(positions, mode="wrap"))


def score_line(split: str, values: Mapping[str, Any]) -> str:
    """Return one line: the loss in words with its standard error, and the loss at training's lengths.

    test: 1.9460 ± 0.0123 bits per byte (training's lengths: 1.9871)
    """
    units = shown_units(values)
    parts = []
    for unit in units:
        words, digits = SHOWN[unit]
        number = f"{values[unit]:.{digits}f}"
        error = values["standard_error"].get(unit)
        if error is not None:
            number += f" ± {error:.{digits}f}"
        parts.append(words.format(number))
    line = f"{split}: {', '.join(parts)}"
    if "init" in values:
        _, digits = SHOWN[units[0]]
        line += f" (training's lengths: {values['init'][units[0]]:.{digits}f})"
    return line


def notes(
    entries: Mapping[str, Mapping[str, Any]], corpus: Corpus, settings: Mapping[str, Any]
) -> list[str]:
    """Return lines on what was scored and how: tokens, tokens left out, the settings, and the unit of ±."""
    lines = []
    for split, values in entries.items():
        what = f"{corpus.name}, {split}{corpus.unknown_share(split)}"
        n_left_out = sum(values["left_out"].values())
        lines += wrap(f"{what}: {values['tokens']:,} tokens scored, {n_left_out:,} left out")
    errors = next(iter(entries.values()))["standard_error"]
    lines += wrap(f"± is a standard error over {errors['over']}; {describe(settings)}")
    return lines


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
