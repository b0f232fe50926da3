"""Draw the picture at the top of the report: each claim's effect during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.sections import Figure
from txl_lightning.reporting.canvas import COLOURS, new_figure

PNG = "figures/effects.png"
CAPTION = (
    "How each effect changes with training; above zero is as the claim says. Curves are of "
    "validation losses at training's attention lengths, the table is of test losses (2, 3 and 4: "
    "at the best lengths), so their ends differ a little. Thick: mean over seeds; thin: single "
    "seeds, where there are several. The panels' scales differ. A claim without a panel has no "
    "curve of its own."
)
Row = Mapping[str, Any]
Claims = Sequence[Mapping[str, Any]]


def courses(claims: Claims) -> dict[str, list[Row]]:
    """Return each claim's differences with a course; a course that an earlier claim has is left out."""
    rows_by_claim: dict[str, list[Row]] = {}
    seen = []
    for number, claim in enumerate(claims, 1):
        rows = [row for row in claim["rows"] if row.get("course") and row["course"] not in seen]
        seen += [row["course"] for row in rows]
        if rows:
            rows_by_claim[f"{number}  {claim['claim']}"] = rows
    return rows_by_claim


def draw_effects(directory: Path, claims: Claims, title: str) -> Figure | None:
    """Draw how all differences develop, a panel for each claim; None if there is nothing to draw yet.

    Args:
        directory: the report's folder.
        claims: `claims` in `results.json`.
        title: the figure's title.
    """
    rows_by_claim = courses(claims)
    if not rows_by_claim:
        return None
    picture = new_figure(7.0, 0.8 + 1.5 * len(rows_by_claim))
    picture.suptitle(title, fontsize=9)
    panels = picture.subplots(len(rows_by_claim), squeeze=False)[:, 0]
    for axes, (claim, rows) in zip(
        panels,
        rows_by_claim.items(),
        strict=True,
    ):
        axes.set_title(claim, fontsize=9, loc="left")
        axes.set_ylabel("effect (%)", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.axhline(0, color="black", linewidth=0.9)
        for row, colour in zip(
            rows,
            cycle(COLOURS),
            strict=False,
        ):
            _draw_course(axes, row, colour)
        axes.legend(
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            fontsize=7,
            frameon=False,
        )
    panels[-1].set_xlabel("million tokens of training", fontsize=8)
    path = directory / PNG
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130)
    return Figure(PNG, CAPTION)


def _draw_course(axes: Axes, row: Row, colour: str) -> None:
    """Draw a difference, named without the lengths at which its test loss is measured."""
    name = str(row["title"]).rpartition(", ")[0].replace(" (", "\n(")
    tokens = np.array(row["tokens"]) / 1e6
    of_seeds = np.array(list(row["course"].values()))
    for course in of_seeds:
        axes.plot(
            tokens,
            course,
            color=colour,
            linewidth=0.6,
            alpha=0.6,
        )
    axes.plot(
        tokens,
        of_seeds.mean(axis=0),
        color=colour,
        linewidth=1.8,
        label=name,
    )
