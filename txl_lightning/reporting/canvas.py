"""Figures, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: colour-blind safe
MARKERS = ("o", "s", "^", "D", "v", "P")


def line_figure(
    path: Path,
    curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]],
    x_label: str,
    y_label: str,
    title: str,
) -> None:
    """Curves by name, one or more (seeds) a name in one colour and marker, as PNG.

    Args:
        path: file to write.
        curves: name to the x and y values of its lines.
        x_label: with unit.
        y_label: with unit.
        title: what the figure shows.
    """
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (name, lines), colour, marker in zip(curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        for i, (x, y) in enumerate(lines):
            axes.plot(x, y, color=colour, marker=marker, markersize=3.5, linewidth=1.4, label=name if i == 0 else None)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def canvas() -> tuple[Figure, Axes]:
    """An empty figure that needs no display."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save_with_legend(figure: Figure, axes: Axes, stem: Path) -> None:
    """Grid and legend, and both files."""
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, stem)


def save_figure(figure: Figure, stem: Path) -> None:
    """A figure as PNG and SVG, `stem` without suffix; the same input gives the same bytes."""
    figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=150)
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})


def short(value: float) -> str:
    """1500000 -> 1.5M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"
