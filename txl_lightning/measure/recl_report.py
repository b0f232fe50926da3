"""Report of `txl recl`, made from `recl.json`: Table 8, Figures 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from txl_lightning.measure.commands import write_markdown
from txl_lightning.measure.recl_page import notes, tables
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend
from txl_lightning.runs.metrics import unit_name

Curve = tuple[str, np.ndarray, np.ndarray | None]  # name, values, standard errors
MOST_TICKS = 12
SIZE = (5.4, 4.4)  # inches; letters can be read at the width of a phone


def write_report(results: dict[str, Any], directory: Path) -> list[str]:
    """Write the tables and the figures.

        recl.md                  losses and gains by context, Table 8, differences
        gains_*.svg|png          Figure 3, a file for each r and group
        contexts.svg|png         Figure 4
        differences.svg|png      loss minus that of the first model, if there are several

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.

    Returns:
        Lines to print: the tables and their notes.
    """
    parts: list[Any] = [part for title, *table in tables(results) for part in (title, "", tuple(table), "")]
    lines = write_markdown(directory / "recl.md", *parts, *notes(results))
    for stem, (title, gains, needed) in _gains_by_file(results).items():
        gain_figure(directory / stem, results, title, gains, needed)
    context_figure(directory / "contexts", results)
    if len(results["models"]) > 1:
        difference_figure(directory / "differences", results)
    return lines


def line_series(results: dict[str, Any]) -> dict[str, tuple[Sequence[float], dict[str, Any], str, str]]:
    """Return the curves of Figures 3 and 4 for Weights & Biases: by panel, x, named curves, the name of x, a title."""
    contexts, unit = results["contexts"], results["unit"]
    losses = {model["name"]: model[unit] for model in results["models"]}
    gains = {
        stem: (contexts[:-1], {**of_models, "needed for a longer RECL": needed}, "c", title)
        for stem, (title, of_models, needed) in _gains_by_file(results).items()
    }
    return {**gains, unit: (contexts, losses, "context", f"{unit_name(results['corpus']['level'])} by context")}


def gain_figure(
    stem: Path, results: dict[str, Any], title: str, gains: Mapping[str, Sequence[float]], needed: Sequence[float]
) -> None:
    """Draw Figure 3, exp f(c, c) - exp f(c, c') for every step from c to c', as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        results: contents of `recl.json`.
        title: title of the figure.
        gains: perplexity gains by model.
        needed: threshold · exp f(c, c), the smallest gain that counts.
    """
    contexts, unit = results["contexts"], results["context_unit"]
    figure = new_figure(*SIZE)
    axes, steps = figure.add_subplot(), range(len(contexts) - 1)
    for (name, curve), look in zip(gains.items(), looks(), strict=False):
        _draw(axes, name, steps, curve, look)
    axes.plot(steps, needed, color="0.35", linestyle="--", linewidth=1.1, label="needed for a longer RECL")
    # Gains span decades and can be exactly zero: the axis is linear only near zero.
    linear = max(min(needed) / 10, 1e-9)
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5)
    axes.set_ylim(bottom=0)
    # A tick between 0 and the first decade would overlap the 0.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "" if 0 < value < linear / 2 else f"{value:g}"))
    every = -(-len(steps) // MOST_TICKS)
    labels = [f"{contexts[i]} → {contexts[i + 1]}" for i in steps]
    axes.set_xticks(list(steps)[::every], labels[::every], rotation=40, ha="right", fontsize=8)
    axes.set(xlabel=f"context c → c' ({unit}s)", ylabel="gain: exp f(c, c) − exp f(c, c') (perplexity)", title=title)
    save_with_legend(figure, axes, stem)


def context_figure(stem: Path, results: dict[str, Any]) -> None:
    """Draw Figure 4, perplexity or bits per character by context, as SVG and PNG."""
    curves = [(model["name"], np.array(model[results["unit"]]), None) for model in results["models"]]
    _draw_by_context(stem, results, curves, unit_name(results["corpus"]["level"]), "Loss by context, all positions")


def difference_figure(stem: Path, results: dict[str, Any]) -> None:
    """Draw l_i(c) - l_first(c) in nats by context for all models but the first, as SVG and PNG.

    Bands are standard errors over blocks of the differences paired by position: variation of the text that both models
    share is not in them.
    """
    first = results["models"][0]["name"]
    curves: list[Curve] = [(first, np.zeros(len(results["contexts"])), None)]
    for one in (one for one in results["differences"] if one["model"] == first):
        curves.append((one["minus"], -np.array(one["nll"]), np.array(one["nll_standard_error"])))
    title = plain_text(f"Loss minus that of {first} (± standard error)")
    _draw_by_context(stem, results, curves, "difference of the loss (nats)", title)


def _draw(axes: Axes, name: str, x: Any, y: Any, look: Mapping[str, Any]) -> None:
    axes.plot(x, y, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))


def _draw_by_context(stem: Path, results: dict[str, Any], curves: Sequence[Curve], ylabel: str, title: str) -> None:
    """Draw curves with bands over the contexts, on a logarithmic axis if the grid is uneven."""
    figure, contexts, slant = new_figure(*SIZE), results["contexts"], dict[str, Any]()
    axes = figure.add_subplot()
    for (name, values, error), look in zip(curves, looks(), strict=False):
        _draw(axes, name, contexts, values, look)
        if error is not None:
            axes.fill_between(contexts, values - error, values + error, color=look["color"], alpha=0.12, linewidth=0)
    if results["step"] is None:
        axes.set_xscale("log", base=2)
        slant = {"rotation": 40, "ha": "right"}
    ticks = contexts[:: -(-len(contexts) // MOST_TICKS)]
    axes.set_xticks(ticks, [str(c) for c in ticks], **slant)
    axes.set(xlabel=f"context ({results['context_unit']}s)", ylabel=ylabel, title=title)
    save_with_legend(figure, axes, stem)


def _gains_by_file(results: dict[str, Any]) -> dict[str, tuple[str, dict[str, list[float]], list[float]]]:
    """Return title, perplexity gains by model, and the gain that counts, for each fraction of each group (Figure 3).

    The gain that counts, threshold · exp f(c, c), is equal for all models of a group.
    """
    found, only = {}, len(results["groups"]) == 1
    for group in results["groups"]:
        models = [model for model in results["models"] if model["group"] == group["name"]]
        for r in (str(float(fraction)) for fraction in results["fractions"]):
            title = f"Gain of more context, hardest {float(r):.0%} of positions"
            curves = {model["name"]: model["recl"][r]["perplexity_gains"] for model in models}
            needed = [results["threshold"] * p for p in models[0]["recl"][r]["perplexities"]]
            stem = f"gains_r{r}" if only else f"gains_{group['name']}_r{r}"
            found[stem] = (title if only else f"{title}, {group['name']}", curves, needed)
    return found
