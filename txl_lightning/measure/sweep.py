"""Sweep of attention lengths in `txl evaluate`: the columns of Table 6, and the lengths chosen on another split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txl_lightning.config.lengths import training_lengths
from txl_lightning.errors import require
from txl_lightning.measure.commands import Table, write_markdown
from txl_lightning.measure.protocols import Carried, Windows
from txl_lightning.measure.split_scores import SplitScores
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.runs.metrics import loss_unit, unit_name

DIGITS = {"ppl": 2, "bpc": 3, "bpb": 3}  # printed


class AtLength(NamedTuple):
    """Protocol at an attention length, which is None for a model without one."""

    length: int | None
    protocol: Carried | Windows


class Sweep:
    """Protocol at the lengths of training and at several attention lengths, and the best of them, once it is known.

    The model's limit replaces a longer attention length.

    Args:
        protocol: lengths that the sweep does not vary.
        lengths: attention lengths; not used with `chosen_on` by a model that has none.
        chosen_on: split whose best length the others are scored at; None for a sweep of every split.
        files: folder for the losses of all tokens; None to write none.

    Raises:
        OptionError: the model has no attention, or a length is not given or not allowed.
    """

    def __init__(
        self, protocol: Carried | Windows, lengths: list[int] | None, chosen_on: str | None, files: Path | None
    ) -> None:
        self.chosen_on, self.files, at_init = chosen_on, files, protocol.at_training_lengths()
        self.init = self.best = AtLength(None, at_init)
        self.lengths: list[AtLength] = []
        if chosen_on is not None and protocol.fixed:
            return
        allowed = "must be given with select_on: lengths to choose from"
        require(lengths is not None, "attention_lengths", lengths, allowed)
        limit, trained = protocol.limit, training_lengths(protocol.trained.config).attention_length
        own, *others = (length if limit is None else min(length, limit) for length in (trained, *(lengths or ())))
        self.init = self.best = AtLength(own, at_init)
        self.lengths = [AtLength(length, protocol.at_attention_length(length)) for length in sorted({*others})]
        for at in (self.init, *self.lengths):
            at.protocol.settings()  # raises for a length that is not allowed, before anything is scored

    def entries(self, scores: SplitScores) -> dict[str, Any]:
        """Score a split; return its entries `sweep` and `selected` in `evaluation.json`."""
        found: dict[str, Any] = {}
        if self.chosen_on in (None, scores.split):
            found["sweep"] = self._at_all(scores) if self.lengths else None
        if self.chosen_on is not None:
            found["selected"] = self._at_chosen(scores)
        return found

    def _at_all(self, scores: SplitScores) -> dict[str, Any]:
        """Score a split at every length; the tolerance is half of the last digit printed: 0.005 ppl or 0.0005 bits."""
        unit, varied, plan = loss_unit(scores.corpus.vocabulary.level), self.init.protocol, [self.init, *self.lengths]
        rows, tolerance = [_row(at, scores) for at in plan], 0.5 * 10 ** -DIGITS[unit]
        best, self.best = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
        return {
            "length_option": varied.length_option,
            "limit": varied.limit,
            "unit": unit,
            "tolerance": tolerance,
            "init": rows[0],
            "best": {**best, "below_init": self._below_init(scores)},
            "attention_length": min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance),
            "lengths": rows[1:],
        }

    def _at_chosen(self, scores: SplitScores) -> dict[str, Any]:
        """Score a split at the lengths of training and at the best length of the split `chosen_on`."""
        entry: dict[str, Any] = {"chosen_on": self.chosen_on, "attention_length": self.best.length}
        entry |= {"init": _row(self.init, scores), "best": _row(self.best, scores)}
        entry["below_init"] = self._below_init(scores)
        if self.files is not None:
            file = self.files / f"losses_{scores.split}_init.npz"
            name = entry["init"]["losses"] = scores.write(self.init.protocol, file)
            if scores.losses(self.best.protocol) is not scores.losses(self.init.protocol):
                name = scores.write(self.best.protocol, file.with_name(f"losses_{scores.split}_best.npz"))
            entry["best"]["losses"] = name
        return entry

    def _below_init(self, scores: SplitScores) -> dict[str, Any] | None:
        return scores.difference(scores.losses(self.init.protocol), scores.losses(self.best.protocol))


def _row(at: AtLength, scores: SplitScores) -> dict[str, Any]:
    values = scores.values(scores.losses(at.protocol))
    return {"attention_length": at.length, **values, "evaluation": at.protocol.settings()}


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
    curves: dict[str, Any] = {}
    for split in (split for split in splits if "sweep" in results[split]):
        rows = (results[split]["sweep"]["init"], *results[split]["sweep"]["lengths"])
        points = sorted((row["attention_length"], row[unit]) for row in rows)
        curves[split] = [tuple(zip(*points, strict=True))]
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
