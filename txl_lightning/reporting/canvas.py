"""Empty figures, colours, and figure files; no display is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from txl_lightning.files import write_atomically

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # Okabe and Ito: colour-blind safe
MARKERS = "os^DvPX"  # one more than colours, so that 42 pairs differ


def looks() -> Iterator[dict[str, Any]]:
    """Yield colour and marker for one curve after another: 42 that differ, then from the beginning."""
    for colour, marker in zip(cycle(COLOURS), cycle(MARKERS), strict=False):
        yield {"color": colour, "marker": marker, "linestyle": "-"}


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """Return an empty figure; the size is in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def line_figure(
    path: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    title: str,
    log_y: bool = False,
) -> None:
    """Draw curves, each with its colour and marker.

    Args:
        path: PNG to write; without a suffix PNG and SVG.
        curves: x and y values, by name.
        x_label: label for the x axis, with its unit.
        y_label: label for the y axis, with its unit.
        title: figure title.
        log_y: draw the y axis in logarithms.
    """
    figure = new_figure(5.4, 4.0)  # small, so its letters are readable on a phone
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label, title=title)
    for (name, (xs, ys)), look in zip(curves.items(), looks(), strict=False):
        axes.plot(xs, ys, **look, markersize=3.5, linewidth=1.4, label=plain_text(name))
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    save_with_legend(figure, axes, path)


def plain_text(name: str) -> str:
    """Return a name as matplotlib shows it unchanged: `$` is no formula, and `_` does not hide it in the legend."""
    if name.startswith("_"):
        name = f" {name}"
    return name.replace("$", r"\$")


def save_with_legend(figure: Figure, axes: Axes, stem: Path) -> None:
    """Add a grid, and a legend below the axes where it covers no curve, then save as `save_figure` does."""
    axes.grid(alpha=0.3)
    n_names = len(axes.get_legend_handles_labels()[1])
    figure.legend(loc="outside lower center", frameon=False, fontsize=9)
    figure.set_figheight(figure.get_figheight() + 0.2 * n_names)
    save_figure(figure, stem)


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem.png` and `stem.svg`, or only the PNG that is named; equal figures give equal bytes."""
    names = [stem.name]
    if stem.suffix != ".png":
        names = [f"{stem.name}.png", f"{stem.name}.svg"]
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        for name in names:
            metadata = {"Date": None} if name.endswith(".svg") else None
            write = partial(figure.savefig, dpi=150, metadata=metadata)
            write_atomically(stem.with_name(name), write)


def short(value: float, position: int | None = None) -> str:
    """Shorten a number with k, M or G: 1500000 becomes 1.5M; matplotlib's formatters give the position too."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"
