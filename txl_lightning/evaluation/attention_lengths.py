"""Sweeps of the attention length: the columns of Table 6, on every split or chosen on one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.corpus import Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import Table, write_markdown
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.scores import SplitScores
from txl_lightning.evaluation.units import loss_unit, unit_name
from txl_lightning.reporting.canvas import line_figure

DIGITS = {"ppl": 2, "bpc": 3, "bpb": 3}  # printed


class AtLength(NamedTuple):
    """Protocol at an attention length, which is None for a model without one."""

    length: int | None
    protocol: Protocol

    def row(self, scores: SplitScores) -> dict[str, Any]:
        """Return the values of a split at this length."""
        return {"attention_length": self.length, **scores.row(self.protocol)}


@dataclass(frozen=True)
class Plan:
    """Attention lengths of a sweep.

    Args:
        init: the lengths of training.
        others: ascending; empty for a model without attention lengths.
    """

    init: AtLength
    others: list[AtLength]

    @property
    def length_option(self) -> str:
        """Option that sets the attention length."""
        return self.init.protocol.length_option

    @property
    def limit(self) -> int | None:
        """Longest attention of the model; None for no limit."""
        return self.init.protocol.limit


def plan_lengths(protocol: Protocol, options: EvaluateOptions) -> Plan:
    """Return the lengths of training, and `attention_lengths`, as far as the model sees.

    Raises:
        OptionError: the model has no attention, or a length is not given or not allowed.
    """
    init = protocol.at_training_lengths()
    lengths = options.attention_lengths
    if options.select_on is not None and protocol.fixed:
        return Plan(AtLength(None, init), [])
    require(protocol.fixed is None, "attention_lengths", lengths, f"must be null: {protocol.fixed}")
    needed = "must be given with select_on: lengths to choose from"
    require(lengths is not None, "attention_lengths", lengths, needed)
    limit = protocol.limit or math.inf
    trained = training_lengths(protocol.trained.config).attention_length
    others = []
    for length in sorted({int(min(length, limit)) for length in lengths or ()}):
        at_length = protocol.at_attention_length(length)
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
        others.append(AtLength(length, at_length))
    return Plan(AtLength(int(min(trained, limit)), init), others)


def sweep_split(plan: Plan, scores: SplitScores) -> tuple[dict[str, Any], AtLength]:
    """Score a split at every length; return its entry `sweep` and the best length.

    The tolerance is half of the last digit printed: 0.005 ppl or 0.0005 bits.
    """
    unit = loss_unit(scores.corpus.vocabulary.level)
    tolerance = 0.5 * 10 ** -DIGITS[unit]
    candidates = [plan.init, *plan.others]
    rows = [candidate.row(scores) for candidate in candidates]
    losses = [row[unit] for row in rows]
    last_to_first = losses[::-1]
    best = len(losses) - 1 - int(np.argmin(last_to_first))  # of equal losses, the longest
    good_enough = [row["attention_length"] for row in rows if row[unit] <= losses[best] + tolerance]
    sweep = {
        "length_option": plan.length_option,
        "limit": plan.limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": {**rows[best], "below_init": below_init(plan, candidates[best], scores)},
        "attention_length": min(good_enough),
        "lengths": rows[1:],
    }
    return sweep, candidates[best]


def below_init(plan: Plan, at_length: AtLength, scores: SplitScores) -> dict[str, Any] | None:
    """Return the difference of the losses at training's lengths and at another length, by token."""
    return scores.difference(scores.losses(plan.init.protocol), scores.losses(at_length.protocol))


def score_selected(plan: Plan, best: AtLength, scores: SplitScores, directory: Path | None) -> dict[str, Any]:
    """Score a split at the lengths of training and at the best length of another split.

    Args:
        plan: the lengths.
        best: the best one on the other split.
        scores: scores of the split.
        directory: folder for the losses of all tokens; None to write none.
    """
    at_init = plan.init.row(scores)
    at_best = best.row(scores)
    if directory is not None:
        init_losses = scores.losses(plan.init.protocol)
        best_losses = scores.losses(best.protocol)
        at_init["losses"] = scores.write_losses(init_losses, "_init", directory)
        at_best["losses"] = at_init["losses"]
        if best_losses is not init_losses:
            at_best["losses"] = scores.write_losses(best_losses, "_best", directory)
    return {
        "attention_length": best.length,
        "init": at_init,
        "best": at_best,
        "below_init": below_init(plan, best, scores),
    }


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens = corpus.splits[split]
    if n is None or n >= len(tokens):
        return corpus
    documents = dict(corpus.documents)
    if corpus.sentences:
        starts = np.asarray(documents[split])
        n_kept = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n = int(starts[n_kept])
        documents[split] = starts[:n_kept]
    splits = dict(corpus.splits)
    splits[split] = tokens[:n]
    return replace(corpus, splits=splits, documents=documents)


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and `attention_lengths.svg|png`.

    Args:
        results: contents of `evaluation.json`, with a sweep of at least one split.
        splits: names of the splits.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    sweeps = {split: results[split]["sweep"] for split in splits if "sweep" in results[split]}
    sweep = next(iter(sweeps.values()))
    _draw_sweeps(sweeps, results["corpus"], directory)
    limit = ""
    if sweep["limit"] is not None:
        limit = f", at most {sweep['limit']}: positions beyond are not trained"
    over = results[splits[0]]["standard_error"]["over"]
    return write_markdown(
        directory / "attention_lengths.md",
        table_6(results, splits),
        "",
        f"The attention length is set by {sweep['length_option']}{limit}. Its column has the shortest length within "
        f"{sweep['tolerance']:g} {sweep['unit']} of the best. Streams start {results['streams_start']}.",
        f"±: standard error over {over}; of differences, the error of the token-by-token differences.",
    )


def _draw_sweeps(sweeps: dict[str, dict[str, Any]], corpus: dict[str, Any], directory: Path) -> None:
    curves: dict[str, Any] = {}
    for split, sweep in sweeps.items():
        losses = {}
        for row in (sweep["init"], *sweep["lengths"]):
            losses[row["attention_length"]] = row[sweep["unit"]]
        lengths = sorted(losses)
        curves[split] = [(lengths, [losses[length] for length in lengths])]
    title = f"Loss by attention length, {corpus['name']}"
    path = directory / "attention_lengths"
    line_figure(path, curves, "attention length (tokens)", unit_name(corpus["level"]), title)


def table_6(results: dict[str, Any], splits: list[str]) -> Table:
    """Return a row for each split: at training's lengths, the best, and the shortest within tolerance.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    unit = loss_unit(results["corpus"]["level"])
    rows = []
    for split in splits:
        if "sweep" in results[split]:
            scores = results[split]["sweep"]
            difference = scores["best"]["below_init"]
            length = f"{scores['attention_length']}"
        else:
            scores = results[split]["selected"]
            difference = scores["below_init"]
            length = f"{scores['attention_length']} (best on {scores['chosen_on']})"
        row = {
            "split": split,
            f"{unit} at training's lengths": _with_error(scores["init"], unit, DIGITS[unit]),
            f"{unit} best": _with_error(scores["best"], unit, DIGITS[unit]),
            "difference": _with_error(difference, unit, DIGITS[unit] + 1),
            "attention length": length,
        }
        rows.append(row)
    return rows


def _with_error(row: dict[str, Any] | None, unit: str, digits: int) -> str:
    if row is None:
        return "–"
    number = f"{row[unit]:.{digits}f}"
    error = row["standard_error"][unit]
    if error is None:
        return number
    return f"{number} ± {error:.{digits}f}"
