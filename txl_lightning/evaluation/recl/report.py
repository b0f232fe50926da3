"""Report of `txl recl`, made from `recl.json`: Table 8, Figures 3 and 4, in files and in Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.recl.figures import context_figure, gain_figure
from txl_lightning.files import write_text
from txl_lightning.reporting.tables import markdown_table

UNITS = {"ppl": "perplexity", "bpc": "bits per character"}


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write `recl.md`, `gains_r*.svg|png` (Figure 3, a file for each r) and `contexts.svg|png` (Figure 4).

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.
        logger: logger options; `wandb` gets the table and the curves as panels.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the table and its notes.
    """
    header, rows = _table_8(results)
    lines = [*markdown_table(header, rows).splitlines(), "", *_notes(results)]
    write_text(directory / "recl.md", "\n".join(lines) + "\n")
    contexts, unit = results["contexts"], results["unit"]
    gains, needed = _gain_curves(results), _needed_gains(results)
    for r, curves in gains.items():
        title = f"Gain of more context, hardest {float(r):.0%} of positions"
        gain_figure(directory / f"gains_r{r}", contexts, curves, needed[r], title)
    losses = {m["name"]: (m[unit], m[f"{unit}_standard_error"]) for m in results["models"]}
    context_figure(
        directory / "contexts",
        contexts,
        losses,
        _unit_name(results),
        "Loss by context, all positions (± standard error)",
    )
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

        with wandb_run(directory, logger, "recl", {**(config or {}), "corpus": results["corpus"]}) as run:
            log_table(run, "recl/table", header, rows)
            for r, curves in gains.items():
                series = {**curves, "needed for a longer RECL": needed[r]}
                log_line_series(run, f"recl/gains_r{r}", contexts[:-1], series, "c", f"perplexity gain, r = {r}")
            means = {name: mean for name, (mean, _) in losses.items()}
            log_line_series(run, f"recl/{unit}", contexts, means, "context", f"{_unit_name(results)} by context")
    return lines


def _table_8(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: RECL with interval by model and fraction, and the loss at the longest context."""
    unit, contexts = results["unit"], results["contexts"]
    fractions = [str(float(r)) for r in results["fractions"]]
    header = [
        "model",
        "kind",
        *(f"RECL r = {r}" for r in fractions),
        f"{unit} at {contexts[-1]} tokens",
        "sees at most",
    ]
    rows = []
    for model in results["models"]:
        cells = [_with_interval(model["recl"][r], bool(results["bootstrap"])) for r in fractions]
        loss = f"{model[unit][-1]:.3f} ± {model[f'{unit}_standard_error'][-1]:.3f}"
        rows.append([model["name"], model["kind"], *cells, loss, str(model["limit"] or "–")])
    return header, rows


def _with_interval(length: dict[str, Any], with_interval: bool) -> str:
    """Format a RECL as `128 [96, 160]`, with ≥ before lower bounds."""
    value = f"{'≥ ' if length['at_least'] else ''}{length['value']}"
    if not with_interval:
        return value
    return f"{value} [{length['low']}, {'≥ ' if length['high_at_least'] else ''}{length['high']}]"


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision and the signs of the table."""
    unit, contexts, models = results["unit"], results["contexts"], results["models"]
    corpus, positions = results["corpus"], results["positions"]
    largest = max(model[f"{unit}_standard_error"][-1] for model in models)
    lines = [
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}) in {positions['blocks']} blocks "
        f"spread evenly over the text; contexts "
        f"{contexts[0]} to {contexts[-1]} in steps of {results['step']}; a step counts if its relative "
        f"gain is at least {results['threshold']:.3g}. "
        f"Largest standard error at {contexts[-1]} tokens: {largest:.4f} {unit}.",
    ]
    if results["bootstrap"]:
        lines.append(f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks.")
    if any(length["at_least"] or length["high_at_least"] for model in models for length in model["recl"].values()):
        lines.append(f"≥: steps still counted at {contexts[-1]} tokens, where the grid ends (max_context).")
    if any(model["limit"] for model in models):
        lines.append("Sees at most: absolute positions without recurrence are limited to the trained length.")
    direct = ", ".join(model["name"] for model in models if model["scoring"] == "direct")
    if direct:
        lines.append(f"Each context has windows of its own, for absolute positions: {direct}.")
    scored = ", ".join(f"{model['name']} {model['positions_scored']:,}" for model in models)
    lines.append(f"Positions scored now (the others were in the store): {scored}.")
    return lines


def _gain_curves(results: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return perplexity gains by fraction and model (Figure 3)."""
    fractions = [str(float(r)) for r in results["fractions"]]
    return {r: {m["name"]: m["recl"][r]["perplexity_gains"] for m in results["models"]} for r in fractions}


def _needed_gains(results: dict[str, Any]) -> dict[str, list[float]]:
    """Return threshold · exp f(c, c) by fraction; it is equal for all models of a group."""
    lengths = results["models"][0]["recl"]
    return {r: [results["threshold"] * p for p in lengths[r]["perplexities"]] for r in lengths}


def _unit_name(results: dict[str, Any]) -> str:
    return "bits per byte" if results["corpus"]["level"] == "byte" else UNITS[results["unit"]]
