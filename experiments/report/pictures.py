"""Picture of the claims at the top of the report: effect against training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from experiments.sections import Figure
from txl_lightning.reporting.canvas import COLOURS, new_figure

PNG = "figures/effects.png"
CAPTION = (
    "How each effect changes with training; above zero is as the claim says. Curves are of validation losses at "
    "training's attention lengths, the table is of test losses (2, 3 and 4: at the best lengths), so their ends differ "
    "a little. Thick: mean over seeds; thin: single seeds, where there are several. The panels' scales differ. What "
    "only one column has was not trained for the other. A claim without a panel has no curve of its own."
)
Claims = Sequence[Mapping[str, Any]]


def courses(claims: Claims) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Return each claim's number and its differences with a course; a course that an earlier claim has is left out."""
    found, seen = [], []
    for number, claim in enumerate(claims, 1):
        rows = [row for row in claim["rows"] if row.get("course") and row["course"] not in seen]
        seen += [row["course"] for row in rows]
        found += [(number, rows)] if rows else []
    return found


def mean_course(row: Mapping[str, Any]) -> list[float]:
    """Return the course of a difference, its mean over seeds."""
    return [float(value) for value in np.mean(list(row["course"].values()), axis=0)]


def draw_effects(directory: Path, claims_of: Mapping[str, Claims]) -> Figure | None:
    """Draw the course of all differences, a row for each claim and a column for each reproduction.

    Args:
        directory: folder of the report.
        claims_of: claims of `results.json`, by words for the reproduction; the first is that of the report.

    Returns:
        None if it has no course yet.
    """
    shown = {words: dict(courses(claims)) for words, claims in claims_of.items()}
    numbers = list(next(iter(shown.values())))
    if not numbers:
        return None
    figure = new_figure(3.4 * len(shown) + 2.6, 1.0 + 1.5 * len(numbers))
    grid = figure.subplots(len(numbers), len(shown), squeeze=False)
    titles = [claim["claim"] for claim in next(iter(claims_of.values()))]
    for axes, words in zip(grid[0], shown, strict=True):
        axes.set_title(words, fontsize=9, pad=20)
    for axes in grid[-1]:
        axes.set_xlabel("million tokens of training", fontsize=8)
    for axes_of_claim, number in zip(grid, numbers, strict=True):
        names = dict.fromkeys(_name(row) for of_claim in shown.values() for row in of_claim.get(number, ()))
        colours = dict(zip(names, cycle(COLOURS)))
        for axes, of_claim in zip(axes_of_claim, shown.values(), strict=True):
            axes.axhline(0, color="black", linewidth=0.9)
            for row in of_claim.get(number, ()):
                tokens, colour = np.array(row["tokens"]) / 1e6, colours[_name(row)]
                for one in row["course"].values():
                    axes.plot(tokens, one, color=colour, linewidth=0.6, alpha=0.6)
                axes.plot(tokens, mean_course(row), color=colour, linewidth=1.8)
            if axes is axes_of_claim[0]:
                axes.text(0, 1.06, f"{number}  {titles[number - 1]}", transform=axes.transAxes, fontsize=9)
                axes.set_ylabel("effect (%)", fontsize=8)
            axes.locator_params(nbins=5)
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.25)
        for name, colour in colours.items():
            axes_of_claim[-1].plot([], [], color=colour, label=name)
        axes_of_claim[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=7, frameon=False)
    path = directory / PNG
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return Figure(PNG, CAPTION)


def _name(row: Mapping[str, Any]) -> str:
    """Title of a difference without the lengths at which its test loss is measured."""
    return str(row["title"]).rpartition(", ")[0].replace(" (", "\n(")
