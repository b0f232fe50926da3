"""Losses of a split by protocol, and the sweep of attention lengths of Table 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.files import write_text
from txl_lightning.measure.losses import TokenLosses, standard_error, text_units
from txl_lightning.measure.protocols import ScoringProtocol
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.reporting.tables import escape, markdown_table
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, loss_unit, unit_name

DIGITS = {"ppl": 2, "bpc": 3}  # printed
AtLength = tuple[int | None, ScoringProtocol]
"""Attention length, None for a model without one, and the protocol that has it."""


class SplitScores:
    """Losses of one split by protocol, and their entries in `evaluation.json`.

    A sweep repeats some settings: losses are remembered by settings.

    Args:
        corpus: corpus of the split.
        split: name of the split.
        block_len: tokens in a block, the unit of standard errors of a split without sentences.
    """

    def __init__(self, corpus: Corpus, split: str, block_len: int) -> None:
        self.corpus, self.split, self.level = corpus, split, corpus.vocabulary.level
        self.block_len = block_len
        self._known: dict[str, TokenLosses] = {}

    def losses(self, protocol: ScoringProtocol) -> TokenLosses:
        """Score the split, unless it was scored with these settings before."""
        settings = str(protocol.settings())
        if settings not in self._known:
            self._known[settings] = protocol.losses(self.split)
        return self._known[settings]

    def values(self, losses: TokenLosses) -> dict[str, Any]:
        """Return the values of losses that `evaluation.json` has for every split and length."""
        # Sentences in order end with a <S> after the last token: as the first one.
        tokens = self.corpus.splits[self.split].take(losses.positions, mode="wrap")
        n_bytes = self.corpus.vocabulary.count_bytes(without_marks(tokens))
        units, over = self.units(losses)
        error, n_units = standard_error(losses.nll, units)
        errors = errors_by_unit(error, losses.mean, self.level)
        return {
            **loss_metrics(losses.mean, self.level, None if n_bytes is None else n_bytes / len(losses.nll)),
            "standard_error": {**errors, "over": over, "units": n_units},
            "tokens": len(losses.nll),
            "bytes": n_bytes,
            "left_out": losses.left_out,
            "seconds": round(losses.seconds, 2),
        }

    def units(self, losses: TokenLosses) -> tuple[NDArray[np.int64], str]:
        """Return the unit of every loss for standard errors, and the name of a unit."""
        return text_units(losses.positions, self.corpus.sentences.get(self.split), self.block_len)

    def row(self, at: AtLength) -> dict[str, Any]:
        """Return the values of a protocol at an attention length."""
        return {"attention_length": at[0], **self.values(self.losses(at[1])), "evaluation": at[1].settings()}

    def difference(self, worse: ScoringProtocol, better: ScoringProtocol) -> dict[str, Any] | None:
        """Return the difference of the losses of two protocols; see `difference`."""
        losses = self.losses(worse)
        return difference(losses, self.losses(better), self.units(losses)[0], self.level)

    def write(self, protocol: ScoringProtocol, path: Path) -> str:
        """Write the losses of a protocol, in text order, with their positions; return the name of the file."""
        losses = self.losses(protocol)
        np.savez(path, nll=losses.nll, positions=losses.positions)
        return path.name


def difference(worse: TokenLosses, better: TokenLosses, units: NDArray[np.int64], level: str) -> dict[str, Any] | None:
    """Return the difference of two losses on the same tokens, and its standard error.

    The difficulty of the text is common to both losses and cancels: only the error of the difference tells whether
    they differ. None if they were scored on different tokens (`max_segments`).
    """
    if not np.array_equal(worse.positions, better.positions):
        return None
    values, others = loss_metrics(worse.mean, level), loss_metrics(better.mean, level)
    error, _ = standard_error(worse.nll.astype(np.float64) - better.nll, units)
    errors = errors_by_unit(error, better.mean, level)
    return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}


def plan_sweep(protocol: ScoringProtocol, lengths: list[int]) -> list[AtLength]:
    """Return the lengths of training and the swept ones, ascending; the model's limit replaces a longer one.

    Args:
        protocol: chosen protocol; lengths that the sweep does not vary come from it.
        lengths: attention lengths.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """

    def possible(length: int) -> int:
        return length if protocol.limit is None else min(length, protocol.limit)

    init = (possible(protocol.training_attention_length), protocol.at_training_lengths())
    plan: list[AtLength] = [init]
    plan += [(length, protocol.at_attention_length(length)) for length in sorted({*map(possible, lengths)})]
    for _, at_length in plan:
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
    return plan


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
    unit, varied = loss_unit(scores.level), plan[1][1]
    tolerance = 0.5 * 10 ** -DIGITS[unit] if tolerance is None else tolerance
    rows = [scores.row(at_length) for at_length in plan]
    best, best_length = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
    entry = {
        "length_option": varied.length_option,
        "limit": varied.limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": {**best, "below_init": scores.difference(plan[0][1], best_length[1])},
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
    entry |= {"init": scores.row(init), "best": scores.row(best), "below_init": scores.difference(init[1], best[1])}
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

    Returns:
        Lines to print: the tables and their notes.
    """
    sweeps = swept_splits(results, splits)
    (sweep, *_), over = sweeps.values(), results[splits[0]]["standard_error"]["over"]
    unit, rows, curves = sweep["unit"], [], {}
    for split, swept in sweeps.items():
        points = sorted((row["attention_length"], row[unit]) for row in (swept["init"], *swept["lengths"]))
        curves[split] = [([length for length, _ in points], [loss for _, loss in points])]
        for row in swept["lengths"]:
            rows.append([split, f"{row['attention_length']}", _with_error(row, unit), f"{row['tokens']:,}"])
    level, name = (results["corpus"][key] for key in ("level", "name"))
    figure = ("attention length (tokens)", unit_name(level), f"Loss by attention length, {name}")
    line_figure(directory / "attention_lengths", curves, *figure)
    limit = "" if sweep["limit"] is None else f", at most {sweep['limit']}: positions beyond are not trained"
    notes = [
        f"The attention length is set by {sweep['length_option']}{limit}. Its column has the shortest length within "
        f"{sweep['tolerance']:g} {unit} of the best. Streams start {results['streams_start']}.",
        f"±: standard error over {over}; of differences that of the token-by-token differences.",
    ]
    lines = [*markdown_table(*table_6(results, splits)).splitlines(), ""]
    lines += [
        *markdown_table(["split", "attention length", unit, "tokens"], rows).splitlines(),
        "",
        *map(escape, notes),
    ]
    write_text(directory / "attention_lengths.md", "\n".join(lines) + "\n")
    return lines


def swept_splits(results: dict[str, Any], splits: list[str]) -> dict[str, dict[str, Any]]:
    """Return the sweeps of `evaluation.json` by split."""
    return {split: results[split]["sweep"] for split in splits if results[split].get("sweep") is not None}


def table_6(results: dict[str, Any], splits: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, one for each split: at training's lengths, the best, and the shortest within tolerance.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    sweeps = swept_splits(results, splits)
    unit = next(iter(sweeps.values()))["unit"]
    header, rows = ["split", f"{unit} at training's lengths", f"{unit} best", "difference", "attention length"], []
    for split in splits:
        scores, chosen_on = (sweeps[split], "") if split in sweeps else (results[split]["selected"], " (best on {})")
        below = scores["best"]["below_init"] if split in sweeps else scores["below_init"]
        gain = "–" if below is None else _with_error(below, unit, DIGITS[unit] + 1)
        length = f"{scores['attention_length']}{chosen_on.format(scores.get('chosen_on'))}"
        rows.append([split, *(_with_error(scores[name], unit) for name in ("init", "best")), gain, length])
    return header, rows


def _with_error(row: dict[str, Any], unit: str, digits: int | None = None) -> str:
    digits, error = DIGITS[unit] if digits is None else digits, row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
