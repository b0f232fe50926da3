"""Figures for `txl recl`: losses by context, gains in every step (Figure 3), differences. A model keeps its colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from txl_lightning.evaluation.units import unit_name
from txl_lightning.recl.effective_context import Entries
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend, short

MOST_TICKS = 9


def draw_figures(results: Entries, directory: Path) -> None:
    """Draw all figures as PNG and SVG.

        contexts          loss by context (Figure 4)
        gains_r…          gain of each step for each r; with several groups gains_GROUP_r… (Figure 3)
        differences       loss minus the first model's, if there are several models

    Args:
        results: the parsed `recl.json`.
        directory: folder for the files.
    """
    styles = {}
    for model, look in zip(results["models"], looks(), strict=False):
        name = model["name"]
        styles[name] = {**look, "label": plain_text(name), "markersize": 3.5, "linewidth": 1.4}
    axes: dict[str, Any] = {"contexts": _losses(results, styles)}
    for group in results["groups"]:
        prefix = "gains"
        if len(results["groups"]) > 1:
            prefix = f"gains_{group['name']}"
        for r in results["fractions"]:
            axes[f"{prefix}_r{float(r)}"] = _gains(results, styles, group["models"], float(r))
    if results["differences"]:
        axes["differences"] = _differences(results, styles)
    for name, of_figure in axes.items():
        save_with_legend(of_figure.figure, of_figure, directory / name)


def _axes(results: Entries, contexts: list[int], title: str, quantity: str) -> Axes:
    """Return axes with ticks at the contexts, or at a selection if there are many."""
    axes = new_figure(5.4, 4.0).add_subplot()  # small: readable on a phone
    axes.set(title=title, xlabel="context (tokens)", ylabel=quantity)
    if results["step"] is None:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(contexts) // MOST_TICKS)
    axes.set_xticks(contexts[::every])
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    return axes


def _draw_curve(
    axes: Axes,
    contexts: list[int],
    values: Sequence[float],
    errors: Sequence[float],
    style: Entries,
) -> None:
    """Draw a curve within ± one standard error."""
    axes.plot(contexts, values, **style)
    low = np.subtract(values, errors)
    high = np.add(values, errors)
    axes.fill_between(contexts, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _losses(results: Entries, styles: Entries) -> Axes:
    contexts = results["contexts"]
    unit = results["unit"]
    unit_in_words = unit_name(results["corpus"]["level"])
    title = f"{unit_in_words.capitalize()} by context (± standard error)"
    axes = _axes(results, contexts, title, unit_in_words)
    for model in results["models"]:
        errors = model[f"{unit}_standard_error"]
        _draw_curve(axes, contexts, model[unit], errors, styles[model["name"]])
    return axes


def _gains(results: Entries, styles: Entries, names: list[str], r: float) -> Axes:
    """Draw a group's gains at r, and the gain that counts: threshold · exp f(c, c), equal for all its models."""
    title = f"Gain of a step, hardest {r:.0%} of positions"
    if r == 1:
        title = "Gain of a step, all positions"
    contexts = results["contexts"][:-1]
    axes = _axes(results, contexts, title, "gain: exp f(c, c) − exp f(c, c') (perplexity)")
    axes.set_xlabel("c, of a step c → c' to the next context (tokens)")
    for model in results["models"]:
        if model["name"] in names:
            length = model["recl"][str(r)]
            axes.plot(contexts, length["perplexity_gains"], **styles[model["name"]])
    needed = results["threshold"] * np.array(length["perplexities"])
    axes.plot(contexts, needed, "--", color="grey", label="needed for a longer RECL")
    decade = np.floor(np.log10(needed.min()))
    axes.set_yscale("symlog", linthresh=10**decade)
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    return axes


def _differences(results: Entries, styles: Entries) -> Axes:
    """Draw every other model's loss minus the first one's; they are paired by position, so bands are narrow."""
    first = results["models"][0]["name"]
    contexts = results["contexts"]
    title = f"Loss minus the loss of {plain_text(first)} (± standard error)"
    axes = _axes(results, contexts, title, "difference of the loss (nats)")
    axes.axhline(0, label=plain_text(f"{first} (zero)"), color=styles[first]["color"])
    for difference in results["differences"]:
        if difference["model"] == first:
            errors = difference["nll_standard_error"]
            style = styles[difference["minus"]]
            _draw_curve(axes, contexts, np.negative(difference["nll"]).tolist(), errors, style)
    return axes
