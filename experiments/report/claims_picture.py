"""Picture of all claims: effect with interval here, the paper's effect beside it, the mark."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.report.text import SIGNS, decimal, percent
from txl_lightning.reporting.canvas import COLOURS, new_figure, save_figure

FILE = "figures/claims.png"
PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # hides the lines of the grid behind letters
HERE, PAPER = COLOURS[0], COLOURS[1]
MARK_COLOURS = {"holds": "#0b6b50", "does not hold": "#a33a00", "within noise": "#4a4f57"}
LINEAR = 2.0  # percent on each side of zero that the axis shows on a linear scale
TICKS = (-1000, -100, -10, -1, 0, 1, 10, 100, 1000)
ALT = "One line per claim: relative effect with its 95 % interval in this run, the paper's effect, the mark"
CAPTION = (
    "Effect of each claim in percent with its 95 % interval, positive as the claim says. Losses: percent of the loss "
    "that should be worse (nats). Lengths, speeds: percent of the one that should be smaller. Attention maps: percent "
    "of one of the two terms. The axis is linear up to 2 % and logarithmic beyond."
)


def draw_claims(path: Path, claims: Sequence[Mapping[str, Any]]) -> None:
    """Draw the picture as PNG and SVG; it can be read at the width of a phone.

    Args:
        path: of the PNG.
        claims: of `results.json`, each with its effect.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = new_figure(4.6, 0.95 + 0.74 * len(claims))
    axes = figure.add_subplot()
    for y, claim in enumerate(claims):
        _line(axes, y, claim)
    axes.axvline(0, color="black", linewidth=0.9, zorder=0)
    ends = [value for claim in claims for value in _values(claim)]
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.9)
    axes.set_xlim(min(-1.2, 1.6 * min(ends)), max(4.0, 1.6 * max(ends)))
    axes.set_ylim(len(claims) - 0.7, -0.65)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(value, 0, signed=True)))
    axes.tick_params(labelsize=10)
    axes.grid(axis="x", alpha=0.25)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("effect in %, right of 0 as the claim says", fontsize=10.5)
    handles = [
        axes.plot([], [], color=HERE, marker="o", linewidth=2, label="here, 95 % interval")[0],
        axes.plot([], [], color=PAPER, marker="D", fillstyle="none", linestyle="none", label="paper")[0],
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10.5)
    save_figure(figure, path.with_suffix(""))


def _line(axes: Axes, y: int, claim: Mapping[str, Any]) -> None:
    """One claim: its name, then its numbers and mark, then interval and markers."""
    colour = MARK_COLOURS[claim["mark"]]
    left, right = axes.get_yaxis_transform(), axes.get_yaxis_transform()
    name = textwrap.shorten(claim["short"], 56, placeholder="…")
    axes.text(0.0, y - 0.37, f"{y + 1}  {name}", transform=left, fontsize=10, va="center", bbox=PLAIN)
    axes.text(
        1.0, y - 0.14, f"{SIGNS[claim['mark']]} {claim['mark']}", transform=right, fontsize=10, va="center", ha="right",
        color=colour, fontweight="bold", bbox=PLAIN,
    )  # fmt: skip
    low, high = claim["relative_low"], claim["relative_high"]
    if low is not None or high is not None:
        ends = [claim["relative"] if end is None else end for end in (low, high)]
        axes.plot(ends, [y + 0.08, y + 0.08], color=HERE, linewidth=2.4, solid_capstyle="butt")
    if (low is None) != (high is None):  # an open interval has an arrow
        axes.plot([claim["relative"]], [y + 0.08], color=HERE, marker="<" if low is None else ">", markersize=9)
    axes.plot([claim["relative"]], [y + 0.08], color=HERE, marker="o", markersize=6)
    if claim["relative_paper"] is not None:
        axes.plot([claim["relative_paper"]], [y + 0.08], color=PAPER, marker="D", fillstyle="none", zorder=3)
    axes.text(0.0, y - 0.14, _numbers(claim), transform=left, fontsize=9, va="center", color="#4a4f57", bbox=PLAIN)


def _numbers(claim: Mapping[str, Any]) -> str:
    paper = claim["relative_paper"]
    theirs = "" if paper is None else f" (paper {percent(paper)})"
    return f"{percent(claim['relative'])}{theirs}"


def _values(claim: Mapping[str, Any]) -> list[float]:
    keys = ("relative", "relative_low", "relative_high", "relative_paper")
    return [claim[key] for key in keys if claim[key] is not None]
