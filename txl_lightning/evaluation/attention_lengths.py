"""The attention length that is best on one split, and the losses of all splits at this length: columns of Table 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.corpus import Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.scores import SplitScores
from txl_lightning.evaluation.units import loss_unit, unit_name
from txl_lightning.reporting.canvas import line_figure

TOLERANCES = {"ppl": 0.005, "bpc": 0.0005, "bpb": 0.0005}  # half of the last digit of Table 6


class AtLength(NamedTuple):
    """Protocol at an attention length, which is None for a model without one."""

    length: int | None
    protocol: Protocol

    def row(self, scores: SplitScores) -> dict[str, Any]:
        """Return the values of a split at this length."""
        return {"attention_length": self.length, **scores.row(self.protocol)}


def lengths_to_try(protocol: Protocol, options: EvaluateOptions) -> list[AtLength]:
    """Return training's lengths, then `attention_lengths`, ascending, as far as the model sees.

    Raises:
        OptionError: the model has no attention, or a length is not given or not allowed.
    """
    init = protocol.at_training_lengths()
    lengths = options.attention_lengths
    if protocol.fixed is not None:
        allowed = f"must be null: {protocol.fixed}"
        require(lengths is None, "attention_lengths", lengths, allowed)
        return [AtLength(None, init)]
    allowed = "must be given with select_on: lengths to choose from"
    require(lengths is not None, "attention_lengths", lengths, allowed)
    limit = protocol.limit or math.inf
    trained = training_lengths(protocol.trained.config).attention_length
    tried = [AtLength(int(min(trained, limit)), init)]
    for length in sorted({int(min(length, limit)) for length in lengths or ()}):
        at_length = protocol.at_attention_length(length)
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
        tried.append(AtLength(length, at_length))
    return tried


def sweep_split(tried: Sequence[AtLength], scores: SplitScores) -> tuple[dict[str, Any], AtLength]:
    """Score a split at every length; return its entry `sweep` and the best length."""
    unit = loss_unit(scores.corpus.vocabulary.level)
    tolerance = TOLERANCES[unit]
    rows = [at_length.row(scores) for at_length in tried]
    best = min(row[unit] for row in rows)
    # Of equal ones the longest.
    best_place = max(place for place, row in enumerate(rows) if row[unit] == best)
    good_enough = [row["attention_length"] for row in rows if row[unit] <= best + tolerance]
    sweep = {
        "length_option": tried[0].protocol.length_option,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": rows[best_place],
        "attention_length": min(good_enough),
        "lengths": rows[1:],
    }
    return sweep, tried[best_place]


def score_selected(
    init: AtLength, best: AtLength, scores: SplitScores, directory: Path | None
) -> dict[str, Any]:
    """Score a split at the lengths of training and at the best length of a split.

    Args:
        init: the lengths of training.
        best: the best one on the split that chooses.
        scores: scores of the split.
        directory: folder for the losses of all tokens; None to write none.
    """
    at_init = init.row(scores)
    at_best = best.row(scores)
    if directory is not None:
        init_losses = scores.losses(init.protocol)
        best_losses = scores.losses(best.protocol)
        at_init["losses"] = scores.write_losses(init_losses, "_init", directory)
        at_best["losses"] = at_init["losses"]
        if best_losses is not init_losses:
            at_best["losses"] = scores.write_losses(best_losses, "_best", directory)
    return {"attention_length": best.length, "init": at_init, "best": at_best}


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens = corpus.splits[split]
    if n is None or n >= len(tokens):
        return corpus
    documents = dict(corpus.documents)
    if corpus.sentences:
        starts = np.asarray(documents[split])
        n_sentences = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n = int(starts[n_sentences])
        documents[split] = starts[:n_sentences]
    splits = dict(corpus.splits)
    splits[split] = tokens[:n]
    return replace(corpus, splits=splits, documents=documents)


def draw_sweep(results: dict[str, Any], chosen_on: str, directory: Path) -> None:
    """Draw the losses of the split that was swept, by attention length: `attention_lengths.svg|png`."""
    sweep = results[chosen_on]["sweep"]
    corpus = results["corpus"]
    losses = {}
    for row in (sweep["init"], *sweep["lengths"]):
        losses[row["attention_length"]] = row[sweep["unit"]]
    lengths = sorted(losses)
    curves = {chosen_on: (lengths, [losses[length] for length in lengths])}
    line_figure(
        directory / "attention_lengths",
        curves,
        "attention length (tokens)",
        unit_name(corpus["level"]),
        f"Loss by attention length, {corpus['name']}",
    )
