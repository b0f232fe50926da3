"""Report of `txl evaluate`: a line for each split; for a sweep the columns of Table 6, all lengths and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.scoring.standard_errors import unit_name
from txl_lightning.files import write_text
from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, save_with_legend
from txl_lightning.reporting.tables import markdown_table
from txl_lightning.runs.metrics import shown_units

REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}
DIGITS = {"ppl": 2, "bpc": 3}
LENGTH_OPTIONS = {
    "mem_len": "The attention length is the memory (mem_len), {same_length}.",
    "ext_len": "The attention length is segment and extended context (ext_len), a window for every segment.",
    "window": "The attention length is the window.",
}


def split_line(split: str, result: dict[str, Any], corpus: str, lengths: str) -> str:
    """Return one line: loss with its standard error, tokens scored, lengths, and tokens left out."""
    unit = "ppl" if "ppl" in result else "bpc"
    error, left_out = result["standard_error"], result["left_out"]
    margin = "" if error[unit] is None else f" ± {error[unit]:.4f}"
    by_bytes = f", bpb {result['bpb']:.4f}" if "bpb" in shown_units(result) else ""
    over = "" if error[unit] is None else f"; ± over {error['units']:,} {error['over']}"
    reasons = ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in left_out.items() if n)
    return (
        f"{split}: nll {result['nll']:.4f}, {unit} {result[unit]:.4f}{margin}{by_bytes} over "
        f"{result['tokens']:,} tokens of {corpus} ({lengths}; left out: {reasons}{over})"
    )


def precision_lines(results: dict[str, Any]) -> list[str]:
    """Return a line with the difference to float32; none if the scores are in float32."""
    difference = results["float32_difference"]
    if difference is None:
        return []
    return [
        f"{results['evaluation']['precision']}: nll {difference['nll']:+.5f} beside float32 "
        f"on the first {difference['tokens']:,} tokens of {difference['split']}"
    ]


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and, for every swept split, `attention_lengths_SPLIT.svg|png`.

    Returns:
        Lines to print: the tables and their notes.
    """
    sweeps = _sweeps(results, splits)
    lines = markdown_table(*_table_6(results, splits)).splitlines()
    for split, sweep in sweeps.items():
        lines += ["", *markdown_table(*_lengths_table(split, sweep)).splitlines()]
        unit = sweep["unit"]
        attention_length_figure(
            directory / f"attention_lengths_{split}",
            _points(sweep["lengths"], unit),
            _points(sweep["unclamped"], unit),
            (sweep["init"]["attention_length"], sweep["init"][unit]),
            (sweep["attention_length"], sweep["best"][unit]),
            f"{unit_name(results['corpus']['level'])}, {results['corpus']['name']}, {split}",
            "Loss by attention length",
        )
    lines += ["", *_notes(results, next(iter(sweeps.values())))]
    write_text(directory / "attention_lengths.md", "\n".join(lines) + "\n")
    return lines


def _sweeps(results: dict[str, Any], splits: list[str]) -> dict[str, dict[str, Any]]:
    """Return the sweeps by split."""
    return {split: results[split]["sweep"] for split in splits if results[split].get("sweep") is not None}


def _points(rows: list[dict[str, Any]], unit: str) -> list[tuple[int, float, float | None]]:
    """Return attention length, loss and standard error of every row."""
    return [(row["attention_length"], row[unit], row["standard_error"][unit]) for row in rows]


def _table_6(results: dict[str, Any], splits: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, one for each split: init, best, and the shortest attention length that reaches it.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    unit = next(iter(_sweeps(results, splits).values()))["unit"]
    header = ["split", f"{unit} init", f"{unit} best", "best below init", "attention length"]
    rows = []
    for split in splits:
        sweep = results[split].get("sweep")
        scores = results[split]["selected"] if sweep is None else sweep
        init, best = scores["init"], scores["best"]
        below = scores["below_init"] if sweep is None else best["below_init"]
        length = f"{scores['attention_length']}" + (f" (best on {scores['chosen_on']})" if sweep is None else "")
        cells = [_with_error(row[unit], row["standard_error"][unit], DIGITS[unit]) for row in (init, best)]
        gain = "–" if below is None else _with_error(below[unit], below["standard_error"][unit], DIGITS[unit] + 1)
        rows.append([split, *cells, gain, length])
    return header, rows


def _lengths_table(split: str, sweep: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    unit = sweep["unit"]
    rows = [
        [
            f"{row['attention_length']}{note}",
            _with_error(row[unit], row["standard_error"][unit], DIGITS[unit]),
            f"{row['tokens']:,}",
        ]
        for note, of_note in (("", sweep["lengths"]), (", no clamp", sweep["unclamped"]))
        for row in of_note
    ]
    return ["attention length", f"{unit}, {split}", "tokens"], rows


def _with_error(value: float, error: float | None, digits: int) -> str:
    margin = "" if error is None else f" ± {error:.{digits}f}"
    return f"{value:.{digits}f}{margin}"


def _notes(results: dict[str, Any], sweep: dict[str, Any]) -> list[str]:
    """Explain the varied option and the columns."""
    same_length = "the same for all tokens (same_length)" if sweep["same_length"] else "at least (same_length=false)"
    init = sweep["init"]["evaluation"]
    names = ("segment_len", "mem_len", "compressed_len", "ext_len", "window", "stride")
    lengths = ", ".join(f"{name} {init[name]}" for name in names if name in init)
    lines = [
        LENGTH_OPTIONS[sweep["knob"]].format(same_length=same_length),
        f"Init: lengths of training ({lengths}). Attention length: the shortest at most {sweep['tolerance']:g} "
        f"{sweep['unit']} above the best. Streams start {results['streams_start']}.",
    ]
    if "compressed_len" in init:
        lines.append("Of the memory, mem_len is at most that of training; the rest is compressed_len.")
    clamps = {row["evaluation"]["clamp_len"] for row in sweep["lengths"]} - {init["clamp_len"]}
    if clamps:
        farthest = ", ".join(map(str, sorted(clamps)))
        lines.append(f"Longer distances than in training have the position of distance {farthest} (clamp_len).")
    if sweep["limit"] is not None:
        lines.append(f"The model has {sweep['limit']} trained positions and cannot use longer attention.")
    over = next(result["standard_error"]["over"] for result in results.values() if _is_split(result))
    lines.append(f"±: standard error over {over}; for differences, of the token-by-token differences.")
    return lines


def log_results(
    results: dict[str, Any], splits: list[str], directory: Path, logger: LoggerConfig, config: dict[str, Any]
) -> None:
    """Log a W&B run: the scores as summary and table; for a sweep also its table and curves.

    Args:
        results: contents of `evaluation.json`.
        splits: splits that were scored.
        directory: folder for the files of the run.
        logger: logger options of the command.
        config: configuration to show beside the run.
    """
    from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

    unit = "ppl" if "ppl" in results[splits[0]] else "bpc"
    header = ["split", "nll", unit, f"{unit} standard error", "tokens"]
    scored = {split: results[split] for split in splits}
    rows = [[split, r["nll"], r[unit], r["standard_error"][unit], r["tokens"]] for split, r in scored.items()]
    known = {**config, "corpus": results["corpus"], "evaluation": results["evaluation"]}
    with wandb_run(directory, logger, "evaluate", known) as run:
        for split in splits:
            shown = ("nll", *shown_units(results[split]), "tokens")
            run.summary.update({f"{split}/{name}": results[split][name] for name in shown})
        log_table(run, "evaluate/table", header, rows)
        sweeps = _sweeps(results, splits)
        if sweeps:
            log_table(run, "evaluate/table_6", *_table_6(results, splits))
            lengths = [row["attention_length"] for row in next(iter(sweeps.values()))["lengths"]]
            curves = {split: [row[unit] for row in sweep["lengths"]] for split, sweep in sweeps.items()}
            title = f"{unit} by attention length"
            log_line_series(run, "evaluate/attention_lengths", lengths, curves, "attention length", title)


def _is_split(result: Any) -> bool:
    """Return whether an entry of the results belongs to a split."""
    return isinstance(result, dict) and "standard_error" in result


def attention_length_figure(
    stem: Path,
    lengths: Sequence[tuple[int, float, float | None]],
    unclamped: Sequence[tuple[int, float, float | None]],
    init: tuple[int, float],
    best: tuple[int, float],
    y_label: str,
    title: str,
) -> None:
    """Draw loss by attention length, the sweep of a row of Table 6, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        lengths: attention length, loss and its standard error (or None) of every point.
        unclamped: these values without clamp, at lengths beyond the longest trained distance.
        init: attention length and loss at the lengths of training.
        best: the shortest attention length that reaches the best loss, and that loss.
        y_label: label of the y axis, with its unit.
        title: title of the figure.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    x, y, errors = zip(*lengths, strict=True)
    if any(error is not None for error in errors):
        low = [value - (error or 0) for value, error in zip(y, errors, strict=True)]
        high = [value + (error or 0) for value, error in zip(y, errors, strict=True)]
        axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.12, linewidth=0, label="standard error")
    axes.plot(x, y, color=COLOURS[0], marker=MARKERS[0], markersize=3.5, linewidth=1.4, label="by attention length")
    if unclamped:
        style: dict[str, Any] = {
            "color": COLOURS[2],
            "marker": MARKERS[2],
            "markersize": 3.5,
            "linewidth": 1.1,
            "linestyle": ":",
        }
        axes.plot(*zip(*[point[:2] for point in unclamped], strict=True), label="without clamp", **style)
    axes.plot(*init, color=COLOURS[1], marker=MARKERS[1], linestyle="", label=f"init, lengths of training ({init[0]})")
    axes.axhline(best[1], color="0.35", linestyle="--", linewidth=1.1, label=f"best, reached at {best[0]}")
    axes.axvline(best[0], color="0.35", linestyle=":", linewidth=1.1)
    axes.set(xlabel="attention length (tokens)", ylabel=y_label, title=title)
    save_with_legend(figure, axes, stem)
