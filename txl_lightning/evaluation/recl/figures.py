"""Figures by context, by place in the text and by position: gains (Figure 3), losses (Figure 4), ablations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from txl_lightning.reporting.canvas import looks, new_figure, plain_text, save_figure, save_with_legend

MOST_TICKS = 12
SIZE = (5.4, 4.4)  # inches; letters can be read at the width of a phone


def gain_figure(
    stem: Path,
    contexts: Sequence[int],
    gains: Mapping[str, Sequence[float]],
    needed: Sequence[float],
    title: str,
    unit: str = "token",
) -> None:
    """Draw Figure 3, exp f(c, c) - exp f(c, c') for every step from c to c', as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        contexts: the grid of contexts; curves have one point less.
        gains: perplexity gains by model.
        needed: threshold · exp f(c, c), the smallest gain that counts.
        title: title of the figure.
        unit: unit of contexts: token or byte.
    """
    figure = new_figure(*SIZE)
    axes = figure.add_subplot()
    steps = range(len(contexts) - 1)
    for (name, curve), look in zip(gains.items(), looks(), strict=False):
        axes.plot(steps, curve, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))
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


def context_figure(
    stem: Path,
    contexts: Sequence[int],
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    y_label: str,
    title: str,
    unit: str = "token",
) -> None:
    """Draw Figure 4, perplexity or bits per character by context, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        contexts: c.
        curves: mean and standard error at every c, by model; the error is drawn as a band.
        y_label: label of the y axis, with its unit.
        title: title of the figure.
        unit: unit of contexts: token or byte.
    """
    figure = new_figure(*SIZE)
    axes = figure.add_subplot()
    for (name, (mean, error)), look in zip(curves.items(), looks(), strict=False):
        axes.plot(contexts, mean, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))
        low = [m - e for m, e in zip(mean, error, strict=True)]
        high = [m + e for m, e in zip(mean, error, strict=True)]
        axes.fill_between(contexts, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.set_xticks(list(contexts)[:: -(-len(contexts) // MOST_TICKS)])
    axes.set(xlabel=f"context ({unit}s)", ylabel=y_label, title=title)
    save_with_legend(figure, axes, stem)


def gain_maps(
    stem: Path, contexts: Sequence[int], gains: Mapping[str, NDArray[np.float64]], unit: str = "token"
) -> None:
    """Draw the gain over the shortest context by block of positions and by context, as SVG and PNG: a map per model.

    Args:
        stem: path of the files without suffix.
        contexts: c.
        gains: mean of l(c_0, t) - l(c, t) over the positions of each block, [C, blocks], in nats, by model.
        unit: unit of contexts: token or byte.
    """
    figure = new_figure(SIZE[0], 1 + 2.4 * len(gains))
    panels = figure.subplots(len(gains), 1, sharex=True, squeeze=False)[:, 0]
    largest = max(float(np.abs(gains_CB).max()) for gains_CB in gains.values()) or 1.0
    every = -(-len(contexts) // MOST_TICKS)
    for axes, (name, gains_CB) in zip(panels, gains.items(), strict=True):
        image = axes.imshow(gains_CB, aspect="auto", origin="lower", cmap="RdBu", vmin=-largest, vmax=largest)
        axes.set_yticks(range(0, len(contexts), every), [str(c) for c in contexts[::every]])
        axes.set(ylabel=f"context ({unit}s)", title=plain_text(name))
    panels[-1].set_xlabel("block of positions, in the order of the text")
    figure.colorbar(image, ax=list(panels), label=f"gain over {contexts[0]} {unit}s (nats)")
    save_figure(figure, stem)


def ablation_figure(
    stem: Path, contexts: Sequence[int], increases: Mapping[str, Mapping[str, Mapping[str, Any]]], unit: str = "token"
) -> None:
    """Draw the increase of the loss by c for each ablation of the far context, as SVG and PNG: a panel per model.

    Args:
        stem: path of the files without suffix.
        contexts: c, beyond which tokens are altered.
        increases: `increase`, `low` and `high` at every c, in nats, by model and ablation; [low, high] is a band.
        unit: unit of contexts: token or byte.
    """
    figure = new_figure(SIZE[0], 1 + 2.4 * len(increases))
    panels = figure.subplots(len(increases), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, of_model) in zip(panels, increases.items(), strict=True):
        for (ablation, of_c), look in zip(of_model.items(), looks(), strict=False):
            axes.plot(contexts, of_c["increase"], **look, markersize=3.5, label=ablation)
            axes.fill_between(contexts, of_c["low"], of_c["high"], color=look["color"], alpha=0.12, linewidth=0)
        axes.axhline(0, color="0.35", linewidth=0.8)
        axes.set(ylabel="increase of loss (nats)", title=plain_text(name))
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False, fontsize=9)
    panels[-1].set(xlabel=f"distance c beyond which {unit}s are altered", xscale="log")
    panels[-1].set_xticks(contexts, [str(c) for c in contexts])
    panels[-1].tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    save_figure(figure, stem)


def position_figure(
    stem: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    trained: Mapping[str, int | None],
    y_label: str,
) -> None:
    """Draw the loss by position in a window read from a fresh state, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        curves: positions, mean loss and its standard error (a band), by model.
        trained: tokens that each model saw in training, a dashed line; None if unknown.
        y_label: label of the y axis, with its unit.
    """
    figure = new_figure(*SIZE)
    axes = figure.add_subplot()
    longest = max(max(positions) for positions, _, _ in curves.values())
    marked = {name: length for name, length in trained.items() if name in curves and (length or math.inf) <= longest}
    for (name, (positions, mean, error)), look in zip(curves.items(), looks(), strict=False):
        colour = look["color"]
        axes.plot(positions, mean, color=colour, linestyle=look["linestyle"], linewidth=1.4, label=plain_text(name))
        low, high = (np.asarray(mean) + sign * np.asarray(error) for sign in (-1, 1))
        axes.fill_between(positions, low, high, color=colour, alpha=0.12, linewidth=0)
        if name in marked:
            axes.axvline(marked[name] or 0, color=colour, linestyle="--", linewidth=1.1)
    if marked:
        axes.plot([], [], color="0.35", linestyle="--", linewidth=1.1, label="tokens seen in training")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="position in the window (tokens)", ylabel=y_label, title="Loss by position (± standard error)")
    save_with_legend(figure, axes, stem)
