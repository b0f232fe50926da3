"""Figures of `txl recl`: losses by context, gains of every step (Figure 3), differences. A model keeps its colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from txl_lightning.evaluation.units import unit_name
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend, short

MOST_TICKS = 9
ONLY_GROUP = 1


def draw_figures(results: dict[str, Any], directory: Path) -> None:
    """Draw all figures as PNG and SVG.

        contexts          loss by context (Figure 4)
        gains_r…          gain of each step for each r; with several groups gains_GROUP_r… (Figure 3)
        differences       loss minus the first model's, if there are several models

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.
    """
    styles = {}
    for model, style in zip(results["models"], looks(), strict=False):
        styles[model["name"]] = {
            **style,
            "label": plain_text(model["name"]),
            "markersize": 3.5,
            "linewidth": 1.4,
        }
    _draw_losses(results, styles, directory / "contexts")
    for group in results["groups"]:
        for r in results["fractions"]:
            _draw_gains(results, group, str(float(r)), styles, directory)
    if len(results["models"]) > 1:
        _draw_differences(results, styles, directory / "differences")


def _axes(contexts: Sequence[int], even: bool, **labels: str) -> tuple[Figure, Axes]:
    """Return axes with ticks at the measured contexts, or at some of them if there are many."""
    figure = new_figure(5.4, 4.0)  # small, so that its letters can be read at the width of a phone
    axes = figure.add_subplot()
    axes.set(**labels)
    if not even:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(contexts) // MOST_TICKS)
    axes.set_xticks(contexts[::every])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    return figure, axes


def _draw_losses(results: dict[str, Any], styles: dict[str, Any], stem: Path) -> None:
    contexts = results["contexts"]
    unit = results["unit"]
    unit_in_words = unit_name(results["corpus"]["level"])
    figure, axes = _axes(
        contexts,
        results["step"] is not None,
        xlabel="context (tokens)",
        ylabel=unit_in_words,
        title=f"{unit_in_words.capitalize()} by context (± standard error)",
    )
    for model in results["models"]:
        style = styles[model["name"]]
        axes.plot(contexts, model[unit], **style)
        _draw_band(axes, contexts, model[unit], model[f"{unit}_standard_error"], style["color"])
    save_with_legend(figure, axes, stem)


def _draw_band(
    axes: Axes, x: Sequence[int], y: Sequence[float], half: Sequence[float], color: str
) -> None:
    axes.fill_between(
        x, np.subtract(y, half), np.add(y, half), color=color, alpha=0.12, linewidth=0
    )


def _draw_gains(
    results: dict[str, Any],
    group: dict[str, Any],
    r: str,
    styles: dict[str, Any],
    directory: Path,
) -> None:
    """Draw the gains of a group at r, and the gain that counts: threshold · exp f(c, c), equal for all its models."""
    contexts = results["contexts"][:-1]
    name = f"gains_r{r}"
    title = "Gain of a step, all positions"
    if float(r) < 1:
        title = f"Gain of a step, hardest {float(r):.0%} of positions"
    if len(results["groups"]) > ONLY_GROUP:
        name = f"gains_{group['name']}_r{r}"
        title += f", {group['name']}"
    figure, axes = _axes(
        contexts,
        results["step"] is not None,
        xlabel="c, of a step c → c' to the next context (tokens)",
        ylabel="gain: exp f(c, c) − exp f(c, c') (perplexity)",
        title=title,
    )
    perplexities: list[float] = []
    for model in results["models"]:
        if model["name"] in group["models"]:
            length = model["recl"][r]
            axes.plot(contexts, length["perplexity_gains"], **styles[model["name"]])
            perplexities = length["perplexities"]
    needed = results["threshold"] * np.array(perplexities)
    axes.plot(
        contexts,
        needed,
        color="grey",
        linestyle="--",
        linewidth=1.2,
        label="needed for a longer RECL",
    )
    decade = np.floor(np.log10(needed.min()))
    axes.set_yscale("symlog", linthresh=10**decade)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    save_with_legend(figure, axes, directory / name)


def _draw_differences(results: dict[str, Any], styles: dict[str, Any], stem: Path) -> None:
    """Draw the loss of the other models minus the first one's; they are paired by position, so bands are narrow."""
    contexts = results["contexts"]
    first = results["models"][0]["name"]
    figure, axes = _axes(
        contexts,
        results["step"] is not None,
        xlabel="context (tokens)",
        ylabel="difference of the loss (nats)",
        title=f"Loss minus the loss of {plain_text(first)} (± standard error)",
    )
    axes.axhline(
        0, label=plain_text(f"{first} (zero)"), color=styles[first]["color"], linewidth=1.4
    )
    for one in results["differences"]:
        if one["model"] == first:
            style = styles[one["minus"]]
            difference = np.negative(one["nll"])
            axes.plot(contexts, difference, **style)
            _draw_band(axes, contexts, difference, one["nll_standard_error"], style["color"])
    save_with_legend(figure, axes, stem)
