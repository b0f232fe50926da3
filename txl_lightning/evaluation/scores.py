"""From a split's losses to the values in `evaluation.json` and to the printed line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.evaluation.losses import TokenLosses, standard_error, text_units
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.units import UNITS, errors_by_unit, loss_metrics, shown_units
from txl_lightning.files import write_atomically

LINE_WIDTH = 100


def score_split(
    protocol: Protocol,
    corpus: Corpus,
    split: str,
    options: EvaluateOptions,
    directory: Path,
    stem: str = "",
) -> dict[str, Any]:
    """Score a split; return its values, the settings, and the losses file's name, if it is written.

    Args:
        protocol: lengths, streams and precision.
        corpus: the split's corpus.
        split: name of the split.
        options: `block_len` and `losses`.
        directory: folder for the losses file.
        stem: ends the name of the losses file.
    """
    losses = protocol.losses(corpus, split)
    row = loss_values(losses, corpus, split, options.block_len)
    if options.losses:
        row["losses"] = f"losses_{split}{stem}.npz"
        arrays: Any = {"nll": losses.nll, "positions": losses.positions}
        write_atomically(
            directory / row["losses"],
            lambda path: np.savez(path, **arrays),
        )
    row["evaluation"] = protocol.settings()
    return row


def loss_values(losses: TokenLosses, corpus: Corpus, split: str, block_len: int) -> dict[str, Any]:
    """Return the values that `evaluation.json` has for every split and length."""
    level = corpus.vocabulary.level
    n_tokens = len(losses.nll)
    # After the last sentence of a split comes the `<S>` of the first.
    tokens = corpus.splits[split].take(losses.positions, mode="wrap")
    n_bytes = corpus.vocabulary.count_bytes(without_marks(tokens))
    units_P, unit_name = text_units(
        losses.positions,
        corpus.sentences.get(split),
        block_len,
    )
    error, n_units = standard_error(losses.nll, units_P)
    return {
        **loss_metrics(losses.mean, level, (n_bytes or 0) / n_tokens),
        "standard_error": {
            **errors_by_unit(error, losses.mean, level),
            "over": unit_name,
            "units": n_units,
        },
        "tokens": n_tokens,
        "bytes": n_bytes,
        "left_out": losses.left_out,
        "seconds": round(losses.seconds, 2),
    }


def score_line(split: str, entry: Mapping[str, Any]) -> str:
    """Return one line: the loss in words with its standard error, bits per byte, the loss at training's lengths.

    test: 1.9460 ± 0.0123 bits per byte (at training lengths: 1.9871)

    Further units are left out if the line is too long. With attention lengths it is the loss at the best one.
    """
    values = entry
    init = entry.get("init")
    line = f"{split}: "
    if "selected" in entry:
        values = entry["selected"]["best"]
        init = entry["selected"]["init"]
        line = f"{split}, attention length {values['attention_length']}: "
    first, *others = shown_units(values)
    unit = UNITS[first]
    number = unit.number(values[first])
    error = values["standard_error"][first]
    if error is not None:
        number += f" ± {unit.number(error)}"
    line += unit.words.format(number)
    ending = ""
    if init is not None:
        ending = f" (at training lengths: {unit.number(init[first])})"
    for other in others:
        words = UNITS[other].words.format(UNITS[other].number(values[other]))
        if len(f"{line}, {words}{ending}") <= LINE_WIDTH:
            line += f", {words}"
    return line + ending


def notes(entries: Mapping[str, Mapping[str, Any]], corpus: Corpus) -> list[str]:
    """Return lines on what was scored and how: tokens, tokens left out, the unit behind ±, and the settings."""
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
    shown = [
        f"{name} {value}" for name, value in settings.items() if value not in (None, False, -1)
    ]
    return ", ".join(shown).replace(" True", "")
