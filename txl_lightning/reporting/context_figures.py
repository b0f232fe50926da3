"""Figures by context: what more of it gains (Figure 3), the loss (Figure 4), the loss by attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from txl_lightning.reporting.figures import COLOURS, MARKERS, save_figure

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
    save(figure, axes, stem)


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
    save(figure, axes, stem)


def attention_length_figure(
    stem: Path,
    lengths: Sequence[tuple[int, float, float | None]],
    init: tuple[int, float],
    best: tuple[int, float],
    y_label: str,
    title: str,
) -> None:
    """The sweep behind a row of Table 6: loss by attention length, as SVG and PNG.

    Args:
        stem: files to write, without their suffix.
        lengths: attention length, loss and its standard error (None if there is none) of every point.
        init: attention length and loss at the lengths of training.
        best: the shortest attention length that reaches the best loss, and that loss.
        y_label: with unit.
        title: what the figure shows.
    """
    figure, axes = canvas()
    x, y, errors = zip(*lengths, strict=True)
    if any(error is not None for error in errors):
        low = [value - (error or 0) for value, error in zip(y, errors, strict=True)]
        high = [value + (error or 0) for value, error in zip(y, errors, strict=True)]
        axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.12, linewidth=0, label="standard error")
    axes.plot(x, y, color=COLOURS[0], marker=MARKERS[0], markersize=3.5, linewidth=1.4, label="by attention length")
    axes.plot(*init, color=COLOURS[1], marker=MARKERS[1], linestyle="", label=f"init, lengths of training ({init[0]})")
    axes.axhline(best[1], color="0.35", linestyle="--", linewidth=1.1, label=f"best, reached at {best[0]}")
    axes.axvline(best[0], color="0.35", linestyle=":", linewidth=1.1)
    axes.set(xlabel="attention length (tokens)", ylabel=y_label, title=title)
    save(figure, axes, stem)


def canvas() -> tuple[Figure, Axes]:
    """An empty figure that needs no display."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save(figure: Figure, axes: Axes, stem: Path) -> None:
    """Grid and legend, and both files."""
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, stem)
