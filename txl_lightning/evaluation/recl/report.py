"""What `txl recl` shows: Table 8, Figures 3 and 4, in files and in Weights & Biases. All from `recl.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.recl.figures import context_figure, gain_figure
from txl_lightning.reporting.tables import markdown_table

UNITS = {"ppl": "perplexity", "bpc": "bits per character"}


def write_report(
    results: dict[str, Any], directory: Path, logger: LoggerConfig, config: dict[str, Any] | None = None
) -> list[str]:
    """Write `recl.md`, `gains_r*.svg|png` (Figure 3, a file for each r) and `contexts.svg|png` (Figure 4).

    Args:
        results: what `recl.json` holds.
        directory: where the files go.
        logger: `wandb` gets the same table and curves as panels.
        config: what the run there is known by.

    Returns:
        The table and what was measured, as lines to print.
    """
    header, rows = table_8(results)
    lines = [*markdown_table(header, rows).splitlines(), "", *notes(results)]
    (directory / "recl.md").write_text("\n".join(lines) + "\n")
    contexts, unit = results["contexts"], results["unit"]
    gains, needed = gain_curves(results), needed_gains(results)
    for r, curves in gains.items():
        title = f"What more context gains, hardest {float(r):.0%} of positions"
        gain_figure(directory / f"gains_r{r}", contexts, curves, needed[r], title)
    losses = {m["name"]: (m[unit], m[f"{unit}_standard_error"]) for m in results["models"]}
    context_figure(
        directory / "contexts",
        contexts,
        losses,
        unit_name(results),
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
            log_line_series(run, f"recl/{unit}", contexts, means, "context", f"{unit_name(results)} by context")
    return lines


def table_8(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """RECL of each model and fraction with its interval, and the loss at the longest context."""
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
        cells = [shown(model["recl"][r], bool(results["bootstrap"])) for r in fractions]
        loss = f"{model[unit][-1]:.3f} ± {model[f'{unit}_standard_error'][-1]:.3f}"
        rows.append([model["name"], model["kind"], *cells, loss, str(model["limit"] or "–")])
    return header, rows


def shown(length: dict[str, Any], with_interval: bool) -> str:
    """`128 [96, 160]`; ≥ where the grid ended before the gains did."""
    value = f"{'≥ ' if length['at_least'] else ''}{length['value']}"
    if not with_interval:
        return value
    return f"{value} [{length['low']}, {'≥ ' if length['high_at_least'] else ''}{length['high']}]"


def notes(results: dict[str, Any]) -> list[str]:
    """What was measured, how exactly, and what the signs mean."""
    unit, contexts, models = results["unit"], results["contexts"], results["models"]
    corpus, positions = results["corpus"], results["positions"]
    largest = max(model[f"{unit}_standard_error"][-1] for model in models)
    lines = [
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}), evenly spaced; contexts "
        f"{contexts[0]} to {contexts[-1]} in steps of {results['step']}; a step counts from a gain of "
        f"{results['threshold']:.3g} on. Largest standard error at {contexts[-1]} tokens: {largest:.4f} {unit}.",
    ]
    if results["bootstrap"]:
        lines.append(f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the positions.")
    if any(length["at_least"] or length["high_at_least"] for model in models for length in model["recl"].values()):
        lines.append(f"≥: still gaining at {contexts[-1]} tokens, where the grid ends (max_context).")
    if any(model["limit"] for model in models):
        lines.append("sees at most: absolute positions without recurrence, capped at the trained length.")
    scored = ", ".join(f"{model['name']} {model['contexts_scored']}" for model in models)
    lines.append(f"Contexts scored now (the others were stored): {scored}.")
    return lines


def gain_curves(results: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Perplexity gains by fraction and model (Figure 3)."""
    fractions = [str(float(r)) for r in results["fractions"]]
    return {r: {m["name"]: m["recl"][r]["perplexity_gains"] for m in results["models"]} for r in fractions}


def needed_gains(results: dict[str, Any]) -> dict[str, list[float]]:
    """threshold · exp f(c, c) by fraction, which all models of a group share."""
    lengths = results["models"][0]["recl"]
    return {r: [results["threshold"] * p for p in lengths[r]["perplexities"]] for r in lengths}


def unit_name(results: dict[str, Any]) -> str:
    """The unit of the losses in words."""
    return "bits per byte" if results["corpus"]["level"] == "byte" else UNITS[results["unit"]]
