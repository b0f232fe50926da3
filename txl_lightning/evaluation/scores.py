"""From a split's losses to the values in `evaluation.json` and to the printed line."""

from __future__ import annotations

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


def score_line(name: str, entry: Mapping[str, Any]) -> str:
    """Return one line: the loss in words with its standard error, bits per byte, the loss at training's lengths.

    test: 1.9460 ± 0.0123 bits per byte (at training lengths: 1.9871)

    Further units are left out if the line is too long. With attention lengths it is the loss at the best one.
    """
    values = entry
    if "selected" in entry:
        values = {**entry["selected"]["best"], "init": entry["selected"]["init"]}
        name = f"{name}, attention length {values['attention_length']}"
    first, *others = shown_units(values)
    unit = UNITS[first]
    number = unit.number(values[first])
    error = values["standard_error"][first]
    if error is not None:
        number += f" ± {unit.number(error)}"
    line = f"{name}: {unit.words.format(number)}"
    ending = ""
    if "init" in values:
        ending = f" (at training lengths: {unit.number(values['init'][first])})"
    for other in others:
        words = UNITS[other].words.format(UNITS[other].number(values[other]))
        if len(f"{line}, {words}{ending}") <= LINE_WIDTH:
            line += f", {words}"
    return line + ending
