"""Attention lengths: the sweep of Table 6, its tables and figure, and a length chosen on one split for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.corpus import Corpus
from txl_lightning.files import write_text
from txl_lightning.measure.scoring.protocols import ScoringProtocol, StateReuse
from txl_lightning.measure.scoring.standard_errors import standard_error, text_units
from txl_lightning.measure.scoring.token_losses import TokenLosses
from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, save_with_legend
from txl_lightning.reporting.tables import escape, markdown_table
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, loss_unit, unit_name

DIGITS = {"ppl": 2, "bpc": 3}  # printed
AtLength = tuple[int | None, ScoringProtocol]
"""Attention length, None for a recurrent model, and the protocol that has it."""


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
        n_bytes = self.corpus.count_bytes(self.split, losses.positions)
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

    def row(self, length: int | None, protocol: ScoringProtocol) -> dict[str, Any]:
        """Return the values of a protocol, whose attention length is `length`."""
        values = self.values(self.losses(protocol))
        return {"attention_length": length, **values, "evaluation": protocol.settings()}

    def below(self, init: AtLength, best: AtLength) -> dict[str, Any] | None:
        """Return the difference of the losses at two lengths; see `difference`."""
        worse, better = self.losses(init[1]), self.losses(best[1])
        return difference(worse, better, self.units(worse)[0], self.level)

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
    nll_P = worse.nll.astype(np.float64) - better.nll
    error, _ = standard_error(nll_P, units)
    errors = errors_by_unit(error, better.mean, level)
    return {**{name: values[name] - others[name] for name in values}, "standard_error": errors}


@dataclass(frozen=True)
class Sweep:
    """Attention lengths to score.

    Args:
        init: that of training.
        lengths: the others, ascending.
        unclamped: those beyond the longest trained distance again, without clamp; empty unless asked for.
    """

    init: AtLength
    lengths: Sequence[AtLength]
    unclamped: Sequence[AtLength]


def plan_sweep(protocol: ScoringProtocol, lengths: list[int], unclamped: bool = False) -> Sweep:
    """Plan the sweep of these attention lengths; a length beyond the protocol's limit is replaced by the limit.

    Args:
        protocol: chosen protocol; lengths that the sweep does not vary come from it.
        lengths: attention lengths.
        unclamped: score clamped lengths without clamp too.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """

    def possible(length: int) -> int:
        return length if protocol.limit is None else min(length, protocol.limit)

    init = (possible(protocol.training_attention_length), protocol.at_training_lengths())
    swept = [(length, protocol.at_attention_length(length)) for length in sorted({*map(possible, lengths)})]
    for _, at_length in (*swept, init):
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
    free = [(length, copy) for length, at_length in swept if unclamped and (copy := at_length.unclamped())]
    return Sweep(init, swept, free)


def sweep_lengths(
    sweep: Sweep, scores: SplitScores, tolerance: float | None
) -> tuple[dict[str, Any], tuple[AtLength, AtLength]]:
    """Score a split at every attention length and derive the columns of Table 6.

        init                 loss at the lengths of training
        best                 lowest loss of init and all lengths
        attention length     shortest length that is worse than the best by at most `tolerance`

    Args:
        sweep: lengths to score.
        scores: scores of the split.
        tolerance: in the unit of the level; None for half of the last digit printed: 0.005 ppl or 0.0005 bpc.

    Returns:
        The entry `sweep` of `evaluation.json` (see `perplexity.command`), and the lengths of init and best.
    """
    unit, varied = loss_unit(scores.level), sweep.lengths[0][1]
    tolerance = 0.5 * 10 ** -DIGITS[unit] if tolerance is None else tolerance
    planned = [*sweep.lengths, sweep.init]
    rows = [scores.row(*at_length) for at_length in planned]
    best, best_length = min(zip(rows, planned, strict=True), key=lambda scored: scored[0][unit])
    entry = {
        "knob": varied.length_option,
        "same_length": varied.settings().get("same_length", False),
        "limit": varied.limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[-1],
        "best": {**best, "below_init": scores.below(sweep.init, best_length)},
        "attention_length": min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance),
        "lengths": rows[:-1],
        "unclamped": [scores.row(*at_length) for at_length in sweep.unclamped],
    }
    return entry, (sweep.init, best_length)


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
        The entry `selected` of `evaluation.json` (see `perplexity.command`).
    """
    entry: dict[str, Any] = {
        "chosen_on": chosen_on,
        "attention_length": best[0],
        "init": scores.row(*init),
        "best": scores.row(*best),
        "below_init": scores.below(init, best),
    }
    if files is not None:
        name = entry["init"]["losses"] = scores.write(init[1], files / f"losses_{scores.split}_init.npz")
        if scores.losses(best[1]) is not scores.losses(init[1]):
            name = scores.write(best[1], files / f"losses_{scores.split}_best.npz")
        entry["best"]["losses"] = name
    return entry


def memory_at_evaluation(protocol: ScoringProtocol, length: int | None, scores: SplitScores) -> dict[str, Any] | None:
    """Score a model that was trained without memory with a memory of `length` states.

    Returns:
        The entry `memory_at_evaluation` of `evaluation.json`; None without `length`, for models without relative
        distances, and for models that were trained with memory.
    """
    config = protocol.trained.config
    has_attention = isinstance(config.model, TransformerXLModelConfig)
    memory = config.memory.mem_len or config.memory.n_tokens
    can_have_memory = has_attention and not memory and not encoding_kind(config).absolute
    if length is None or not can_have_memory or not isinstance(protocol, StateReuse):
        return None
    return scores.row(length, protocol.with_memory(length))


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens, sentences = corpus.splits[split], corpus.sentences
    if n is None or n >= len(tokens):
        return corpus
    if split in sentences:
        starts = np.asarray(sentences[split])
        kept = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n, sentences = int(starts[kept]), {**sentences, split: starts[:kept]}
    return replace(corpus, splits={**corpus.splits, split: tokens[:n]}, sentences=sentences)


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and, for every swept split, `attention_lengths_SPLIT.svg|png`.

    Returns:
        Lines to print: the tables and their notes.
    """
    sweeps = swept_splits(results, splits)
    lines = markdown_table(*table_6(results, splits)).splitlines()
    for split, sweep in sweeps.items():
        unit = sweep["unit"]
        noted = [(row, "") for row in sweep["lengths"]] + [(row, ", no clamp") for row in sweep["unclamped"]]
        rows = [
            [f"{row['attention_length']}{note}", _with_error(row, unit, DIGITS[unit]), f"{row['tokens']:,}"]
            for row, note in noted
        ]
        lines += ["", *markdown_table(["attention length", f"{unit}, {split}", "tokens"], rows).splitlines()]
        y_label = f"{unit_name(results['corpus']['level'])}, {results['corpus']['name']}, {split}"
        attention_length_figure(directory / f"attention_lengths_{split}", sweep, y_label)
    over = results[splits[0]]["standard_error"]["over"]
    notes = _notes(next(iter(sweeps.values())), results["streams_start"], over)
    lines += ["", *map(escape, notes)]
    write_text(directory / "attention_lengths.md", "\n".join(lines) + "\n")
    return lines


def swept_splits(results: dict[str, Any], splits: list[str]) -> dict[str, dict[str, Any]]:
    """Return the sweeps of `evaluation.json` by split."""
    return {split: results[split]["sweep"] for split in splits if results[split].get("sweep") is not None}


def table_6(results: dict[str, Any], splits: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, one for each split: init, best, and the shortest attention length that reaches it.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    sweeps = swept_splits(results, splits)
    unit = next(iter(sweeps.values()))["unit"]
    rows = []
    for split in splits:
        if split in sweeps:
            scores, below, chosen_on = sweeps[split], sweeps[split]["best"]["below_init"], ""
        else:
            scores = results[split]["selected"]
            below, chosen_on = scores["below_init"], f" (best on {scores['chosen_on']})"
        cells = [_with_error(scores[name], unit, DIGITS[unit]) for name in ("init", "best")]
        gain = "–" if below is None else _with_error(below, unit, DIGITS[unit] + 1)
        rows.append([split, *cells, gain, f"{scores['attention_length']}{chosen_on}"])
    return ["split", f"{unit} init", f"{unit} best", "best below init", "attention length"], rows


def _with_error(row: dict[str, Any], unit: str, digits: int) -> str:
    error = row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _notes(sweep: dict[str, Any], streams_start: str, over: str) -> list[str]:
    """Explain the varied option and the columns."""
    init = sweep["init"]["evaluation"]
    names = ("segment_len", "mem_len", "compressed_len", "ext_len", "window", "stride")
    lengths = ", ".join(f"{name} {init[name]}" for name in names if name in init)
    lines = [
        f"The attention length is set by {sweep['knob']}, with same_length={str(sweep['same_length']).lower()}.",
        f"Init: lengths of training ({lengths}). Attention length: the shortest at most {sweep['tolerance']:g} "
        f"{sweep['unit']} above the best. Streams start {streams_start}.",
    ]
    if "compressed_len" in init:
        lines.append("Of the memory, mem_len is at most that of training; the rest is compressed_len.")
    for clamp_len in sorted({row["evaluation"]["clamp_len"] for row in sweep["lengths"]} - {init["clamp_len"]}):
        lines.append(f"Longer distances than in training have the position of distance {clamp_len} (clamp_len).")
    if sweep["limit"] is not None:
        lines.append(f"The model has {sweep['limit']} trained positions and cannot use longer attention.")
    return [*lines, f"±: standard error over {over}; for differences, of the token-by-token differences."]


def attention_length_figure(stem: Path, sweep: dict[str, Any], y_label: str) -> None:
    """Draw loss by attention length, the sweep of a row of Table 6, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        sweep: entry `sweep` of `evaluation.json`.
        y_label: label of the y axis, with its unit.
    """
    unit, init, best_length = sweep["unit"], sweep["init"], sweep["attention_length"]
    figure = new_figure()
    axes = figure.add_subplot()
    x, y = _points(sweep["lengths"], unit)
    errors = [row["standard_error"][unit] or 0 for row in sweep["lengths"]]
    if any(errors):
        band = (np.subtract(y, errors), np.add(y, errors))
        axes.fill_between(x, *band, color=COLOURS[0], alpha=0.12, linewidth=0, label="standard error")
    axes.plot(x, y, color=COLOURS[0], marker=MARKERS[0], markersize=3.5, linewidth=1.4, label="by attention length")
    if sweep["unclamped"]:
        style: dict[str, Any] = {"color": COLOURS[2], "marker": MARKERS[2], "markersize": 3.5, "linewidth": 1.1}
        axes.plot(*_points(sweep["unclamped"], unit), **style, linestyle=":", label="without clamp")
    label = f"init, lengths of training ({init['attention_length']})"
    axes.plot(*_points([init], unit), color=COLOURS[1], marker=MARKERS[1], linestyle="", label=label)
    lines: dict[str, Any] = {"color": "0.35", "linewidth": 1.1}
    axes.axhline(sweep["best"][unit], **lines, linestyle="--", label=f"best, reached at {best_length}")
    axes.axvline(best_length, **lines, linestyle=":")
    axes.set(xlabel="attention length (tokens)", ylabel=y_label, title="Loss by attention length")
    save_with_legend(figure, axes, stem)


def _points(rows: list[dict[str, Any]], unit: str) -> tuple[list[int], list[float]]:
    """Return attention lengths and losses."""
    return [row["attention_length"] for row in rows], [row[unit] for row in rows]
