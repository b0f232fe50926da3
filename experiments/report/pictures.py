"""Picture of the claims at the top of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter

from experiments.sections import Figure
from txl_lightning.reporting.canvas import COLOURS, new_figure

MARK_COLOURS = {"✓": "#0b6b50", "✗": "#a33a00", "≈": "#4a4f57", "–": "#9aa0a8"}
LINEAR = 1.0  # percent: up to here the scale is linear, beyond logarithmic
CAPTION = (
    "The differences that each claim rests on, in the order of their rows below, in percent, with 95 % intervals (◇: "
    "the paper’s): right of the line as the claim says. An arrow: the interval is open there."
)


def draw_claims(directory: Path, claims: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw the differences of all claims as `figures/claims.png`; None if no claim has one yet.

    Args:
        directory: folder of the report.
        claims: of `results.json`.
    """
    drawn = [[row for row in claim["rows"] if "percent" in row] for claim in claims]
    if not any(drawn):
        return None
    figure = new_figure(6.0, 0.6 + sum(0.3 + 0.16 * max(1, len(rows)) for rows in drawn))
    axes, y, bottom = figure.add_subplot(), 0.0, 0.0
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.axvline(0, color="black", linewidth=0.9, zorder=0)
    for number, (claim, rows) in enumerate(zip(claims, drawn, strict=True), 1):
        axes.text(0.0, y, f"{number}  {claim['claim']}", transform=axes.get_yaxis_transform(), fontsize=9, va="center")
        y += 1.2
        for row in rows:
            colour, ends = MARK_COLOURS[row["mark"]], [row.get("percent_low"), row.get("percent_high")]
            if ends != [None, None]:
                low, high = (row["percent"] if end is None else end for end in ends)
                axes.plot([low, high], [y, y], color=colour, linewidth=1.6)
                if None in ends:
                    axes.plot([row["percent"]], [y], color=colour, marker="<" if ends[0] is None else ">", markersize=6)
            axes.plot([row["percent"]], [y], color=colour, marker="o", markersize=3.5)
            if "paper" in row:
                axes.plot([row["paper"]], [y], color=COLOURS[1], marker="D", fillstyle="none", markersize=5)
            y += 0.8
        bottom = y = y + 0.4
    axes.set_ylim(bottom, -0.8)
    axes.set_yticks([])
    axes.set_xlabel("effect in percent; of losses: of the loss that should be higher", fontsize=9)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.grid(axis="x", alpha=0.25)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    path = directory / "figures/claims.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return Figure("figures/claims.png", CAPTION)
