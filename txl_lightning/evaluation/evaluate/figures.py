"""Figure of the loss by attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, save_with_legend


def attention_length_figure(
    stem: Path,
    lengths: Sequence[tuple[int, float, float | None]],
    unclamped: Sequence[tuple[int, float, float | None]],
    init: tuple[int, float],
    best: tuple[int, float],
    y_label: str,
    title: str,
) -> None:
    """Draw loss by attention length, the sweep of a row of Table 6, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        lengths: attention length, loss and its standard error (or None) of every point.
        unclamped: these values without clamp, at lengths beyond the longest trained distance.
        init: attention length and loss at the lengths of training.
        best: the shortest attention length that reaches the best loss, and that loss.
        y_label: label of the y axis, with its unit.
        title: title of the figure.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    x, y, errors = zip(*lengths, strict=True)
    if any(error is not None for error in errors):
        low = [value - (error or 0) for value, error in zip(y, errors, strict=True)]
        high = [value + (error or 0) for value, error in zip(y, errors, strict=True)]
        axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.12, linewidth=0, label="standard error")
    axes.plot(x, y, color=COLOURS[0], marker=MARKERS[0], markersize=3.5, linewidth=1.4, label="by attention length")
    if unclamped:
        style: dict[str, Any] = {
            "color": COLOURS[2],
            "marker": MARKERS[2],
            "markersize": 3.5,
            "linewidth": 1.1,
            "linestyle": ":",
        }
        axes.plot(*zip(*[point[:2] for point in unclamped], strict=True), label="without clamp", **style)
    axes.plot(*init, color=COLOURS[1], marker=MARKERS[1], linestyle="", label=f"init, lengths of training ({init[0]})")
    axes.axhline(best[1], color="0.35", linestyle="--", linewidth=1.1, label=f"best, reached at {best[0]}")
    axes.axvline(best[0], color="0.35", linestyle=":", linewidth=1.1)
    axes.set(xlabel="attention length (tokens)", ylabel=y_label, title=title)
    save_with_legend(figure, axes, stem)
