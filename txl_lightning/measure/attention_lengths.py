"""Sweep of attention lengths (Table 6): at training's, the best, and the shortest that is about as good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import Corpus
from txl_lightning.measure.commands import Table, write_markdown
from txl_lightning.measure.scoring import Scoring, SplitScores
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.runs.metrics import loss_unit, unit_name

DIGITS = {"ppl": 2, "bpc": 3}  # printed
AtLength = tuple[int | None, Scoring]
"""Attention length, None for a model without one, and the scoring that has it."""


def plan_sweep(scoring: Scoring, lengths: list[int]) -> list[AtLength]:
    """Return the lengths of training and the swept ones, ascending; the model's limit replaces a longer one.

    Args:
        scoring: chosen scoring; lengths that the sweep does not vary come from it.
        lengths: attention lengths.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """
    limit = scoring.limit
    possible = {length if limit is None else min(length, limit) for length in lengths}
    trained = scoring.training_attention_length
    plan: list[AtLength] = [(trained if limit is None else min(trained, limit), scoring.at_training_lengths())]
    plan += [(length, scoring.at_attention_length(length)) for length in sorted(possible)]
    for _, at_length in plan:
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
    return plan


def _row(at: AtLength, scores: SplitScores) -> dict[str, Any]:
    return {"attention_length": at[0], **scores.values(scores.losses(at[1])), "evaluation": at[1].settings()}


def sweep_lengths(
    plan: Sequence[AtLength], scores: SplitScores, tolerance: float | None
) -> tuple[dict[str, Any], AtLength]:
    """Score a split at every attention length: at training's, the best, and the shortest within `tolerance` of it.

    Args:
        plan: lengths to score, training's first.
        scores: scores of the split.
        tolerance: in the unit of the level; None for half of the last digit printed: 0.005 ppl or 0.0005 bpc.

    Returns:
        The entry `sweep` of `evaluation.json`, and the best length.
    """
    unit, varied = loss_unit(scores.corpus.vocabulary.level), plan[1][1]
    tolerance = 0.5 * 10 ** -DIGITS[unit] if tolerance is None else tolerance
    rows = [_row(at_length, scores) for at_length in plan]
    best, best_length = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
    entry = {
        "length_option": varied.length_option,
        "limit": varied.limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": {**best, "below_init": scores.difference(scores.losses(plan[0][1]), scores.losses(best_length[1]))},
        "attention_length": min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance),
        "lengths": rows[1:],
    }
    return entry, best_length


def score_chosen(
    init: AtLength, best: AtLength, chosen_on: str, scores: SplitScores, files: Path | None
) -> dict[str, Any]:
    """Score a split at two lengths.

    Args:
        init: length of training.
        best: length with the lowest loss on the split `chosen_on`; may be `init`.
        chosen_on: name of that split.
        scores: scores of the split.
        files: folder for the losses of all tokens; None to write none.

    Returns:
        The entry `selected` of `evaluation.json`.
    """
    entry: dict[str, Any] = {"chosen_on": chosen_on, "attention_length": best[0]}
    entry |= {"init": _row(init, scores), "best": _row(best, scores)}
    entry["below_init"] = scores.difference(scores.losses(init[1]), scores.losses(best[1]))
    if files is not None:
        name = entry["init"]["losses"] = scores.write(init[1], files / f"losses_{scores.split}_init.npz")
        if scores.losses(best[1]) is not scores.losses(init[1]):
            name = scores.write(best[1], files / f"losses_{scores.split}_best.npz")
        entry["best"]["losses"] = name
    return entry


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens, documents = corpus.splits[split], corpus.documents
    if n is None or n >= len(tokens):
        return corpus
    if corpus.sentences:
        starts = np.asarray(documents[split])
        kept = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n, documents = int(starts[kept]), {**documents, split: starts[:kept]}
    return replace(corpus, splits={**corpus.splits, split: tokens[:n]}, documents=documents)


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and `attention_lengths.svg|png`.

    Args:
        results: contents of `evaluation.json`, with a sweep of at least one split.
        splits: names of the splits.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    sweep, *_ = (results[split]["sweep"] for split in splits if "sweep" in results[split])
    unit, over = sweep["unit"], results[splits[0]]["standard_error"]["over"]
    curves = {split: [curve] for split, curve in curves_of(results, splits).items()}
    level, name = (results["corpus"][key] for key in ("level", "name"))
    figure = ("attention length (tokens)", unit_name(level), f"Loss by attention length, {name}")
    line_figure(directory / "attention_lengths", curves, *figure)
    limit = "" if sweep["limit"] is None else f", at most {sweep['limit']}: positions beyond are not trained"
    return write_markdown(
        directory / "attention_lengths.md",
        table_6(results, splits),
        "",
        f"The attention length is set by {sweep['length_option']}{limit}. Its column has the shortest length within "
        f"{sweep['tolerance']:g} {unit} of the best. Streams start {results['streams_start']}.",
        f"±: standard error over {over}; of differences that of the token-by-token differences.",
    )


def curves_of(results: Mapping[str, Any], splits: list[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Return attention lengths, ascending, and losses of every split with a sweep."""
    curves = {}
    for split in splits:
        if sweep := results[split].get("sweep"):
            points = sorted((row["attention_length"], row[sweep["unit"]]) for row in (sweep["init"], *sweep["lengths"]))
            curves[split] = ([length for length, _ in points], [loss for _, loss in points])
    return curves


def table_6(results: Mapping[str, Any], splits: list[str]) -> Table:
    """Return a row for each split: at training's lengths, the best, and the shortest within tolerance.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    unit, rows = loss_unit(results["corpus"]["level"]), []
    for split in splits:
        sweep = results[split].get("sweep")
        scores, chosen_on = (sweep, "") if sweep else (results[split]["selected"], " (best on {})")
        below = scores["best"]["below_init"] if sweep else scores["below_init"]
        gain = "–" if below is None else _with_error(below, unit, DIGITS[unit] + 1)
        length = f"{scores['attention_length']}{chosen_on.format(scores.get('chosen_on'))}"
        rows.append([split, *(_with_error(scores[name], unit) for name in ("init", "best")), gain, length])
    return ["split", f"{unit} at training's lengths", f"{unit} best", "difference", "attention length"], rows


def _with_error(row: Mapping[str, Any], unit: str, digits: int | None = None) -> str:
    digits, error = DIGITS[unit] if digits is None else digits, row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
