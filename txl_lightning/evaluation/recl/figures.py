"""Figures by context: the gain of each step (Figure 3) and the loss (Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from txl_lightning.reporting.canvas import COLOURS, MARKERS, canvas, save_with_legend

MOST_TICKS = 12


def gain_figure(
    stem: Path,
    contexts: Sequence[int],
    gains: Mapping[str, Sequence[float]],
    needed: Sequence[float],
    title: str,
) -> None:
    """Figure 3: exp f(c, c) - exp f(c, c') against the step from c to c', a curve a model, as SVG and PNG.

    Args:
        stem: files to write, without their suffix.
        contexts: the grid, one longer than the curves.
        gains: in perplexity, by model.
        needed: threshold · exp f(c, c), the gain from which on a step counts.
        title: what the figure shows.
    """
    figure, axes = canvas()
    steps = range(len(contexts) - 1)
    for (name, curve), colour, marker in zip(gains.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        axes.plot(steps, curve, color=colour, marker=marker, markersize=3.5, linewidth=1.4, label=name)
    axes.plot(steps, needed, color="0.35", linestyle="--", linewidth=1.1, label="needed for a longer RECL")
    # Gains fall over decades, and a model that gains nothing more is exactly at zero: linear near zero only.
    axes.set_yscale("symlog", linthresh=max(min(needed) / 10, 1e-9), linscale=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    every = -(-len(steps) // MOST_TICKS)
    labels = [f"{contexts[i]} → {contexts[i + 1]}" for i in steps]
    axes.set_xticks(list(steps)[::every], labels[::every], rotation=40, ha="right", fontsize=8)
    axes.set(xlabel="context c → c' (tokens)", ylabel="gain: exp f(c, c) − exp f(c, c') (perplexity)", title=title)
    save_with_legend(figure, axes, stem)


def context_figure(
    stem: Path,
    contexts: Sequence[int],
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    y_label: str,
    title: str,
) -> None:
    """Figure 4: perplexity or bits per character by context, a curve a model, as SVG and PNG.

    Args:
        stem: files to write, without their suffix.
        contexts: c.
        curves: mean and standard error at every c, by model; the error is the band around the mean.
        y_label: with unit.
        title: what the figure shows.
    """
    figure, axes = canvas()
    for (name, (mean, error)), colour, marker in zip(curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        axes.plot(contexts, mean, color=colour, marker=marker, markersize=3.5, linewidth=1.4, label=name)
        low = [m - e for m, e in zip(mean, error, strict=True)]
        high = [m + e for m, e in zip(mean, error, strict=True)]
        axes.fill_between(contexts, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xticks(list(contexts)[:: -(-len(contexts) // MOST_TICKS)])
    axes.set(xlabel="context (tokens)", ylabel=y_label, title=title)
    save_with_legend(figure, axes, stem)
