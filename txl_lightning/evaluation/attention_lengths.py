"""The attention length that is best on one split, and all splits' losses at this length: columns in Table 6."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.corpus import Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.units import UNITS
from txl_lightning.reporting.canvas import line_figure

CHOSEN_ON = "valid"
AtLength: TypeAlias = tuple[int, Protocol]
"""Attention length, and the protocol at this length."""
Score: TypeAlias = Callable[[Protocol, str, str], dict[str, Any]]


def lengths_to_try(protocol: Protocol, lengths: Sequence[int]) -> list[AtLength]:
    """Return training's lengths, then other lengths, ascending, as far as the model sees.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """
    allowed = f"must be null: {protocol.fixed}"
    require(protocol.fixed is None, "attention_lengths", lengths, allowed)
    limit = protocol.limit or math.inf
    trained = training_lengths(protocol.trained.config).attention_length
    tried = [(int(min(trained, limit)), protocol.at_training_lengths())]
    for length in sorted({int(min(length, limit)) for length in lengths}):
        at_length = protocol.at_attention_length(length)
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
        tried.append((length, at_length))
    return tried


def select_length(
    splits: Sequence[str], tried: Sequence[AtLength], score: Score, unit: str
) -> dict[str, dict[str, Any]]:
    """Choose the attention length on validation; score all splits at training's lengths and at this length.

    Args:
        splits: names of the splits, `CHOSEN_ON` among them.
        tried: training's length, then others.
        score: returns a split's values with a protocol; the last argument ends the names of its files.
        unit: compared is the loss in this unit.

    Returns:
        The entries of the splits in `evaluation.json`.
    """

    def row_at(place: int, split: str) -> dict[str, Any]:
        length, protocol = tried[place]
        stem = f"_{length}" if place else "_init"
        return {"attention_length": length, **score(protocol, split, stem)}

    rows = [row_at(place, CHOSEN_ON) for place in range(len(tried))]
    longest_first = reversed(range(len(rows)))
    best = min(longest_first, key=lambda place: rows[place][unit])
    entries = {}
    for split in splits:
        at_init = rows[0]
        at_best = rows[best]
        if split != CHOSEN_ON:
            at_init = row_at(0, split)
            at_best = row_at(best, split) if best else at_init
        selected = {
            "chosen_on": CHOSEN_ON,
            "attention_length": tried[best][0],
            "init": at_init,
            "best": at_best,
        }
        entries[split] = {**at_init, "selected": selected}
    tolerance = UNITS[unit].tolerance
    limit = rows[best][unit] + tolerance
    entries[CHOSEN_ON]["sweep"] = {
        "length_option": tried[0][1].length_option,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": rows[best],
        "attention_length": min(row["attention_length"] for row in rows if row[unit] <= limit),
        "lengths": rows[1:],
    }
    return entries


def first_tokens(corpus: Corpus, n: int | None) -> Corpus:
    """Return the corpus with only the first n validation tokens, or whole sentences with at most n tokens in all."""
    if n is None or n >= len(corpus.splits[CHOSEN_ON]):
        return corpus
    documents = dict(corpus.documents)
    if corpus.sentences:
        starts = documents[CHOSEN_ON]
        n_sentences = max(
            1,
            int(np.searchsorted(starts, n, side="right")) - 1,
        )
        n = int(starts[n_sentences])
        documents[CHOSEN_ON] = starts[:n_sentences]
    splits = {**corpus.splits, CHOSEN_ON: corpus.splits[CHOSEN_ON][:n]}
    return replace(corpus, splits=splits, documents=documents)


def draw_sweep(sweep: Mapping[str, Any], corpus: Corpus, directory: Path) -> None:
    """Draw the validation loss by attention length: `attention_lengths.svg|png`."""
    unit = sweep["unit"]
    losses = {}
    for row in (sweep["init"], *sweep["lengths"]):
        losses[row["attention_length"]] = row[unit]
    lengths = sorted(losses)
    values = [losses[length] for length in lengths]
    title = f"Loss by attention length, {corpus.name}"
    x_label = "attention length (tokens)"
    path = directory / "attention_lengths"
    line_figure(
        path,
        {CHOSEN_ON: (lengths, values)},
        x_label,
        UNITS[unit].name,
        title,
    )
