"""Figures for `txl recl`: losses by context, gains in every step (Figure 3), differences. A model keeps its colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        gains_r…          gain of each step for each r (Figure 3)
        differences       loss minus the first model's, if there are several models

    Args:
        results: the parsed `recl.json`.
        directory: folder for the files.
    """
    unit = results["unit"]
    contexts = results["contexts"]
    models = {model["name"]: model for model in results["models"]}
    losses = {
        name: (model[unit], model[f"{unit}_standard_error"]) for name, model in models.items()
    }
    axes = _axes(contexts, losses)
    quantity = unit_name(results["corpus"]["level"])
    axes.set(
        title=f"{quantity.capitalize()} by context (± standard error)",
        ylabel=quantity,
    )
    _save(axes, directory / "contexts")
    for r in map(float, results["fractions"]):
        axes = _gains(results, str(r))
        axes.set_title(f"Gain of a step, hardest {r:.0%} of positions")
        _save(axes, directory / f"gains_r{r}")
    if len(models) > 1:
        first = next(iter(models))
        differences = {f"{first} (zero)": (np.zeros(len(contexts)), 0)}
        for pair in results["differences"][: len(models) - 1]:  # of the first model
            differences[pair["minus"]] = (np.negative(pair["nll"]), pair["nll_standard_error"])
        axes = _axes(contexts, differences)
        title = f"Loss minus the loss of {plain_text(first)} (± standard error)"
        axes.set(title=title, ylabel="difference of the loss (nats)")
        _save(axes, directory / "differences")


def _gains(results: Entries, r: str) -> Axes:
    """Draw the gains at r, and the gain that counts: threshold · exp f(c, c), equal for all models."""
    contexts = results["contexts"][:-1]
    gains = {}
    for model in results["models"]:
        length = model["recl"][r]
        gains[model["name"]] = (length["perplexity_gains"], 0)
    axes = _axes(contexts, gains)
    needed = results["threshold"] * np.array(length["perplexities"])
    axes.plot(
        contexts,
        needed,
        "--",
        color="grey",
        label="needed for a longer RECL",
    )
    decade = np.floor(np.log10(needed.min()))
    axes.set_yscale("symlog", linthresh=10**decade)
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    axes.set_xlabel("c, of a step c → c' to the next context (tokens)")
    axes.set_ylabel("gain: exp f(c, c) − exp f(c, c') (perplexity)")
    return axes


def _axes(contexts: Sequence[int], curves: Mapping[str, tuple[Any, Any]]) -> Axes:
    """Draw the values of each model in a band of one standard error, with ticks at some contexts."""
    axes = new_figure(5.4, 4.0).add_subplot()  # small: to be read at the width of a phone
    axes.set_xlabel("context (tokens)")
    for (name, (values, errors)), look in zip(curves.items(), looks(), strict=False):
        label = plain_text(name)
        axes.plot(
            contexts,
            values,
            **look,
            label=label,
            markersize=3.5,
            linewidth=1.4,
        )
        low = np.subtract(values, errors)
        high = np.add(values, errors)
        axes.fill_between(
            contexts,
            low,
            high,
            color=look["color"],
            alpha=0.12,
            linewidth=0,
        )
    if len(set(np.diff(contexts))) > 1:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(contexts) // MOST_TICKS)
    axes.set_xticks(contexts[::every])
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    return axes


def _save(axes: Any, stem: Path) -> None:
    save_with_legend(axes.figure, axes, stem)
