"""Figure of Table 9: time per token by attention length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from txl_lightning.reporting.canvas import COLOURS, MARKERS, new_figure, plain_text, save_figure

Point = tuple[int, float, float, float]


def speed_figure(
    stem: Path,
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    ratios: Mapping[str, Sequence[float]],
    title: str,
) -> None:
    """Draw a panel for every level on a common logarithmic axis of milliseconds, as SVG and PNG.

    Args:
        stem: path of the files without suffix.
        panels: by panel and scheme, points of attention length and median, minimum and maximum milliseconds per token.
        ratios: by panel, time of the first scheme over that of the last, for every attention length.
        title: title of the figure.
    """
    figure = new_figure(1.6 + 4.2 * len(panels), 4.6)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, curves) in zip(all_axes, panels.items(), strict=True):
        for (name, points), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            lengths, middle, low, high = zip(*points, strict=True)
            axes.plot(
                lengths, middle, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=plain_text(name)
            )
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
        first, last = next(iter(curves.values())), list(curves.values())[-1]
        for upper, lower, ratio in zip(first, last, ratios[panel], strict=True):
            axes.annotate(
                f"{ratio:,.0f}×", (lower[0], lower[1]), (0, -8), textcoords="offset points", ha="center", va="top"
            )
            axes.plot([upper[0]] * 2, [upper[1], lower[1]], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axes.set(yscale="log", xlabel="attention length (tokens)", title=panel)
        axes.set_xticks([point[0] for point in first])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.margins(x=0.12, y=0.14)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("milliseconds per token")
    figure.suptitle(title)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, stem)
