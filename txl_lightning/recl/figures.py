"""Figures for `txl recl`: losses by context, gains in every step (Figure 3), differences. A model keeps its colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from txl_lightning.evaluation.units import unit_name
from txl_lightning.recl.effective_context import Array, Entries
from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_with_legend, short

MOST_TICKS = 9
Curves = Mapping[str, tuple[Any, Any]]
"""Values and standard errors by context, by model."""


def draw_figures(results: Entries, directory: Path) -> None:
    """Draw all figures as PNG and SVG, with bars of one standard error.

        contexts          loss by context (Figure 4)
        gains_r…          gain of each step for each r (Figure 3)
        differences       loss minus the first model's, if there are several models

    Args:
        results: the parsed `recl.json`.
        directory: folder for the files.
    """
    unit = results["unit"]
    contexts = results["contexts"]
    models = results["models"]
    losses = {}
    for model in models:
        losses[model["name"]] = (model[unit], model[f"{unit}_standard_error"])
    quantity = unit_name(results["corpus"]["level"])
    title = f"{quantity.capitalize()} by context (± standard error)"
    _draw(directory / "contexts", title, quantity, contexts, losses)
    for r in map(float, results["fractions"]):
        gains = {}
        for model in models:
            length = model["recl"][str(r)]
            gains[model["name"]] = (length["perplexity_gains"], None)
        needed = results["threshold"] * np.array(length["perplexities"])  # equal for all models
        title = f"Gain of a step c → c', hardest {r:.0%} of positions"
        quantity = "exp f(c, c) − exp f(c, c') (perplexity)"
        _draw(
            directory / f"gains_r{r}",
            title,
            quantity,
            contexts[:-1],
            gains,
            needed,
        )
    if len(models) > 1:
        first = models[0]["name"]
        differences: dict[str, tuple[Any, Any]] = {
            f"{first} (zero)": (0 * np.array(contexts), None)
        }
        for pair in results["differences"][: len(models) - 1]:  # of the first model
            differences[pair["minus"]] = (np.negative(pair["nll"]), pair["nll_standard_error"])
        title = f"Loss minus the loss of {plain_text(first)} (± standard error)"
        _draw(directory / "differences", title, "difference (nats)", contexts, differences)


def _draw(
    stem: Path,
    title: str,
    quantity: str,
    contexts: Sequence[int],
    curves: Curves,
    needed: Array | None = None,
) -> None:
    """Draw the curves of all models, with ticks at some contexts, and the gain that RECL needs."""
    figure = new_figure(5.4, 4.0)  # small: to be read at the width of a phone
    axes = figure.add_subplot()
    every = -(-len(contexts) // MOST_TICKS)
    axes.set(
        title=title,
        xlabel="context c (tokens)",
        ylabel=quantity,
        xticks=contexts[::every],
    )
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    for (name, (values, errors)), look in zip(
        curves.items(),
        looks(),
        strict=False,
    ):
        label = plain_text(name)
        axes.errorbar(
            contexts,
            values,
            errors,
            label=label,
            markersize=3.5,
            linewidth=1.4,
            **look,
        )
    if needed is not None:
        axes.plot(contexts, needed, "--", color="grey", label="needed for a longer RECL")
        decade = np.floor(np.log10(needed.min()))
        axes.set_yscale("symlog", linthresh=10**decade)
        axes.yaxis.set_major_formatter(FuncFormatter(short))
    save_with_legend(figure, axes, stem)
