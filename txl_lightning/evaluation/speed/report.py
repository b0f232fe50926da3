"""What `txl speed` shows: the table with the paper's beside it, and the figure. All from `speed.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.speed.figures import speed_figure
from txl_lightning.reporting.tables import markdown_table

NAMES = {
    "vanilla": "vanilla, sliding window",
    "vanilla_fused": "vanilla, fused attention",
    "hidden": "state reuse, hidden states (paper)",
    "cached": "state reuse, cached keys and values",
}
LEVELS = {"char": "characters", "word": "words"}


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write `speed.md` and `speed.svg|png`.

    Args:
        results: what `speed.json` holds.
        directory: where the files go.
        logger: `wandb` gets the same table and figure, and the ratios as line series.
        config: what the run there is known by.

    Returns:
        The table and what was measured, as lines to print.
    """
    header, rows = table_9(results)
    lines = [*markdown_table(header, rows).splitlines(), "", *notes(results)]
    (directory / "speed.md").write_text("\n".join(lines) + "\n")
    panels: dict[str, dict[str, list[tuple[int, float, float, float]]]] = {}
    ratios: dict[str, list[float]] = {}
    for result in results["results"]:
        panel = f"{LEVELS[result['level']]} (V = {results['models'][result['level']]['vocab_size']:,})"
        curves = panels.setdefault(panel, {name: [] for name in NAMES.values()})
        for name, times in result["seconds_per_token"].items():
            point = (result["attention_len"], *(1000 * times[key] for key in ("median", "min", "max")))
            curves[NAMES[name]].append(point)
        ratios.setdefault(panel, []).append(result["ratios"]["vanilla/cached"]["median"])
    title = "Time of a token by attention length; ×: vanilla / cached"
    speed_figure(directory / "speed", panels, ratios, title)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_line_series, log_table, wandb_run

        with wandb_run(directory, logger, "speed", {**(config or {}), "machine": results["machine"]}) as run:
            log_table(run, "speed/table", header, rows)
            for level, (lengths, slower) in ratio_curves(results).items():
                how_many = f"{LEVELS[level]}: how many times slower"
                log_line_series(run, f"speed/ratios_{level}", lengths, slower, "attention length", how_many)
            log_image(run, "speed/times", directory / "speed.png", title)
    return lines


def ratio_curves(results: dict[str, Any]) -> dict[str, tuple[list[int], dict[str, list[float]]]]:
    """By level the attention lengths, and at each the median ratios and, where the paper has them, its own."""
    curves: dict[str, tuple[list[int], dict[str, list[float]]]] = {}
    for level in results["models"]:
        measured = [result for result in results["results"] if result["level"] == level]
        ratios = {name: [result["ratios"][name]["median"] for result in measured] for name in measured[0]["ratios"]}
        if all(result["paper"] for result in measured):
            ratios["paper"] = [result["paper"] for result in measured]
        curves[level] = ([result["attention_len"] for result in measured], ratios)
    return curves


def table_9(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Milliseconds a token of every scheme, and how many times slower the vanilla model is."""
    header = ["level", "attention length", "vanilla, ms a token", "fused", "hidden states", "cached"]
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
                *(shown(ratios[name]) for name in ("vanilla/hidden", "vanilla/cached")),
                f"{ratios['vanilla_fused/cached']['median']:,.0f}×",
                f"{result['paper']:,}×" if result["paper"] else "–",
            ]
        )
    return header, rows


def shown(ratio: dict[str, float]) -> str:
    """`7,802× (7,011–8,120)`."""
    return f"{ratio['median']:,.0f}× ({ratio['min']:,.0f}–{ratio['max']:,.0f})"


def notes(results: dict[str, Any]) -> list[str]:
    """What was compared, what was measured and on what."""
    machine = results["machine"]
    short_names = dict(zip(NAMES, ("vanilla", "fused", "hidden states", "cached"), strict=True))
    lines = [
        "vanilla: a forward pass over the attention length for every token, softmax of its last position only. State "
        f"reuse: segments of {results['segment_len']} tokens, the attention length remembered as hidden states, as in "
        "the paper, or as cached keys and values. One stream; every token of both sees exactly the attention length. "
        "fused: the vanilla model with attention that never holds all its scores, its fastest form here.",
    ]
    for level, model in results["models"].items():
        deeper = "" if model["vanilla_n_layer"] == model["n_layer"] else f" (vanilla: {model['vanilla_n_layer']})"
        adaptive = f", adaptive softmax cut at {', '.join(map(str, model['cutoffs']))}" if model["cutoffs"] else ""
        lines.append(
            f"{LEVELS[level]}: {model['n_layer']} layers{deeper}, d_model {model['d_model']}, {model['n_head']} heads, "
            f"d_inner {model['d_inner']}, {model['parameters']:,} parameters, {model['vocab_size']:,} symbols"
            f"{adaptive}; encoding {model['encoding']} and {model['vanilla_encoding']} (vanilla), otherwise the same "
            "sizes and weights."
        )
    counts = {
        name: sorted({result["seconds_per_token"][name]["tokens"] for result in results["results"]}) for name in NAMES
    }
    measured = ", ".join(f"{short_names[name]} {fewest_to_most(numbers)}" for name, numbers in counts.items())
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    clock = "time that passed" if results["clock"] == "wall" else "processor time of this process alone"
    lines.append(
        f"Medians of {results['rounds']} rounds in turns, ratios within a round; {clock}. Tokens measured at each "
        f"length, random ones: {measured}. {machine['accelerator'] or machine['processor']}, {threads}, "
        f"torch {machine['torch']}; {results['seconds']:,.0f} s in all."
    )
    lines.append("paper: Table 9, measured on a GPU with models of other sizes, states reused as hidden states.")
    return lines


def fewest_to_most(numbers: list[int]) -> str:
    """`15`, or `15 to 45`."""
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
