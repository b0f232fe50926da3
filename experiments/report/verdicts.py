"""Claims as the report shows them: the text of a row, the summary, and the picture with effects and intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.report.sections import decimal, interval, percent
from txl_lightning.reporting.canvas import COLOURS, new_figure, save_figure

RULE = (
    "One rule for all: a claim rests on one difference or several, positive if the claim is right. It holds if every "
    "95 % interval lies above zero, even if the effect is small. It does not hold if one lies below zero, or if one "
    "that includes zero lies in percent below half of the effect in the paper: the run excludes even half of it. "
    "Otherwise it is within noise. Of several differences, the one that supports the claim least is shown. "
    "Intervals of losses are over seeds and blocks of 1,000 to 20,000 tokens of the test text, 30 or more if "
    "it has as many thousands, those of context lengths over positions, of speed over rounds, of attention over heads. "
    "An interval has no end on the side where a context length may be beyond those measured. The smallest visible "
    "effect is half the width of the interval, of context lengths at least one step of those measured."
)
SIGNS = {"holds": "✓", "does not hold": "✗", "within noise": "≈"}
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


def claim_text(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return a claim of `results.json` as the table of claims shows it.

    Returns:
        `claim` in a sentence; `effect` with its unit, its 95 % `interval`, and the `smallest` effect that the run could
        have seen; `relative` and `relative_interval`, the same in percent; `theirs`, the paper's effect in percent; the
        `mark` with its sign. What there is not is empty.
    """
    unit = f" {claim['unit']}" if claim["unit"] else ""
    size = claim["smallest"] or abs(claim["effect"]) or 1.0
    digits = max(0, min(4, 1 - math.floor(math.log10(size))))  # two of the interval's digits or three
    relative, paper, of_percent = claim["relative"], claim["relative_paper"], 1 if abs(claim["relative"]) < 100 else 0
    return {
        "claim": claim["claim"],
        "effect": decimal(claim["effect"], digits, signed=True) + unit,
        "interval": interval(claim["low"], claim["high"], digits, signed=True),
        "smallest": "" if claim["smallest"] is None else decimal(claim["smallest"], digits) + unit,
        "relative": percent(relative),
        "relative_interval": interval(claim["relative_low"], claim["relative_high"], of_percent, signed=True),
        "theirs": "" if paper is None else percent(paper),
        "mark": f"{SIGNS[claim['mark']]} {claim['mark']}",
    }


def summary(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return mark, count in words and claims with their effects, a line for each mark that a claim has."""
    words = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not hold", "do not hold"),
        "within noise": ("is within noise", "are within noise"),
    }
    lines = []
    for mark, (one, several) in words.items():
        named = []
        for claim in claims:
            if claim["mark"] == mark:
                paper = claim["relative_paper"]
                effect = percent(claim["relative"]) + ("" if paper is None else f"; paper {percent(paper)}")
                named.append(f"{claim['short'].rstrip('.')} ({effect})")
        if named:
            counted = f"{len(named)} of {len(claims)} claims {one if len(named) == 1 else several}"
            lines.append((mark, counted, "; ".join(named)))
    return lines


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
    theirs = "" if claim["relative_paper"] is None else f" (paper {percent(claim['relative_paper'])})"
    effect = f"{percent(claim['relative'])}{theirs}"
    axes.text(0.0, y - 0.14, effect, transform=left, fontsize=9, va="center", color="#4a4f57", bbox=PLAIN)


def _values(claim: Mapping[str, Any]) -> list[float]:
    keys = ("relative", "relative_low", "relative_high", "relative_paper")
    return [claim[key] for key in keys if claim[key] is not None]
