"""Report of `txl speed`, made from `speed.json`: the table, with the paper's ratios beside it, and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.files import write_text
from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, plain_text, save_figure
from txl_lightning.reporting.tables import markdown_table

NAMES = {
    "vanilla": "vanilla, sliding window",
    "vanilla_fused": "vanilla, fused attention",
    "hidden": "state reuse, hidden states (paper)",
    "cached": "state reuse, cached keys and values",
}
LEVELS = {"char": "characters", "word": "words"}
Point = tuple[int, float, float, float]


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write `speed.md` and `speed.svg|png`.

    Args:
        results: contents of `speed.json`.
        directory: folder for the files.
        logger: logger options; `wandb` gets the table, the figure, and the ratios as line series.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the table and its notes.
    """
    header, rows = _table_9(results)
    lines = [*markdown_table(header, rows).splitlines(), "", *_notes(results)]
    write_text(directory / "speed.md", "\n".join(lines) + "\n")
    panels: dict[str, dict[str, list[tuple[int, float, float, float]]]] = {}
    ratios: dict[str, list[float]] = {}
    for result in results["results"]:
        panel = f"{LEVELS[result['level']]} (V = {results['models'][result['level']]['vocab_size']:,})"
        curves = panels.setdefault(panel, {name: [] for name in NAMES.values()})
        for name, times in result["seconds_per_token"].items():
            point = (result["attention_len"], *(1000 * times[key] for key in ("median", "min", "max")))
            curves[NAMES[name]].append(point)
        ratios.setdefault(panel, []).append(result["ratios"]["vanilla/cached"]["median"])
    title = "Time per token by attention length; ×: vanilla / cached"
    speed_figure(directory / "speed", panels, ratios, title)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_line_series, log_table, wandb_run

        with wandb_run(directory, logger, "speed", {**(config or {}), "machine": results["machine"]}) as run:
            log_table(run, "speed/table", header, rows)
            for level, (lengths, slower) in _ratio_curves(results).items():
                panel_title = f"{LEVELS[level]}: how many times slower"
                log_line_series(run, f"speed/ratios_{level}", lengths, slower, "attention length", panel_title)
            log_image(run, "speed/times", directory / "speed.png", title)
    return lines


def _ratio_curves(results: dict[str, Any]) -> dict[str, tuple[list[int], dict[str, list[float]]]]:
    """Return attention lengths and median ratios by level, with the paper's ratios where it has them."""
    curves: dict[str, tuple[list[int], dict[str, list[float]]]] = {}
    for level in results["models"]:
        measured = [result for result in results["results"] if result["level"] == level]
        ratios = {name: [result["ratios"][name]["median"] for result in measured] for name in measured[0]["ratios"]}
        if all(result["paper"] for result in measured):
            ratios["paper"] = [result["paper"] for result in measured]
        curves[level] = ([result["attention_len"] for result in measured], ratios)
    return curves


def _table_9(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: milliseconds per token of every scheme, and ratios of vanilla to state reuse."""
    header = ["level", "attention length", "vanilla, ms per token", "fused", "hidden states", "cached"]
    header += ["vanilla / hidden states (min–max)", "vanilla / cached (min–max)", "fused / cached", "paper"]
    rows = []
    for result in results["results"]:
        times = [f"{1000 * result['seconds_per_token'][name]['median']:.3g}" for name in NAMES]
        ratios = result["ratios"]
        rows.append(
            [
                LEVELS[result["level"]],
                f"{result['attention_len']:,}",
                *(f"{float(t):,.0f}" if float(t) >= 100 else t for t in times),
                *(_with_range(ratios[name]) for name in ("vanilla/hidden", "vanilla/cached")),
                f"{ratios['vanilla_fused/cached']['median']:,.0f}×",
                f"{result['paper']:,}×" if result["paper"] else "–",
            ]
        )
    return header, rows


def _with_range(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:,.0f}× ({ratio['min']:,.0f}–{ratio['max']:,.0f})"


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the schemes, the models, the measurement and the machine."""
    machine = results["machine"]
    short_names = dict(zip(NAMES, ("vanilla", "fused", "hidden states", "cached"), strict=True))
    lines = [
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. fused: "
        "vanilla with attention that never holds all scores, its fastest form here. State reuse: segments of "
        f"{results['segment_len']} tokens, with a memory of the attention length: hidden states, as in the paper, or "
        "cached keys and values. One stream; every query attends to exactly the attention length.",
    ]
    for level, model in results["models"].items():
        deeper = "" if model["vanilla_n_layer"] == model["n_layer"] else f" (vanilla: {model['vanilla_n_layer']})"
        adaptive = f", adaptive softmax cut at {', '.join(map(str, model['cutoffs']))}" if model["cutoffs"] else ""
        lines.append(
            f"{LEVELS[level]}: {model['n_layer']} layers{deeper}, d_model {model['d_model']}, {model['n_head']} heads, "
            f"d_inner {model['d_inner']}, {model['parameters']:,} parameters, {model['vocab_size']:,} symbols"
            f"{adaptive}; encoding {model['encoding']} and {model['vanilla_encoding']} (vanilla), otherwise equal "
            "sizes and weights."
        )
    counts = {
        name: sorted({result["seconds_per_token"][name]["tokens"] for result in results["results"]}) for name in NAMES
    }
    measured = ", ".join(f"{short_names[name]} {_range(numbers)}" for name, numbers in counts.items())
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    clock = "wall-clock time" if results["clock"] == "wall" else "CPU time of this process"
    lines.append(
        f"Medians of {results['rounds']} rounds, ratios within a round; {clock}. Random tokens measured at each "
        f"length: {measured}. {machine['accelerator'] or machine['processor']}, {threads}, "
        f"torch {machine['torch']}; {results['seconds']:,.0f} s in all."
    )
    lines.append("paper: Table 9, measured on a GPU with models of other sizes; hidden states are reused.")
    return lines


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def speed_figure(
    stem: Path,
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    ratios: Mapping[str, Sequence[float]],
    title: str,
) -> None:
    """Draw a panel for every level on a common logarithmic axis of milliseconds, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        panels: by panel and scheme, points of attention length and median, minimum and maximum milliseconds per token.
        ratios: by panel, time of the first scheme over that of the last, for every attention length.
        title: title of the figure.
    """
    figure = new_figure(1.6 + 4.2 * len(panels), 4.6)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, curves) in zip(all_axes, panels.items(), strict=True):
        for (name, points), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            lengths, middle, low, high = zip(*points, strict=True)
            axes.plot(
                lengths, middle, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=plain_text(name)
            )
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
        first, last = next(iter(curves.values())), list(curves.values())[-1]
        for upper, lower, ratio in zip(first, last, ratios[panel], strict=True):
            axes.annotate(
                f"{ratio:,.0f}×", (lower[0], lower[1]), (0, -8), textcoords="offset points", ha="center", va="top"
            )
            axes.plot([upper[0]] * 2, [upper[1], lower[1]], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axes.set(yscale="log", xlabel="attention length (tokens)", title=panel)
        axes.set_xticks([point[0] for point in first])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.margins(x=0.12, y=0.14)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("milliseconds per token")
    figure.suptitle(title)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, stem)
