"""Figures 5, 6 and 7: where the heads of the Transformer-XL look, and what each term of the score does alone.

The paper found that nearby tokens dominate but some heads look at the whole memory; that a softmax of term (a) alone is
nearly uniform, that (b) alone looks like the whole, and that (d) alone also prefers near tokens but is flatter.
Runs: `txl attention` on the first run with recurrence, its encoding and the full loss.
Writes: the three figures, and a table of what they show, from which the claim is judged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.report.cells import Cell, Section, column, number, text
from experiments.tables.arms import Arm, trainings

TITLE = "Figures 5 to 7: where the heads look"
PAPER = (
    "Averaged over the validation text, nearby tokens dominate, and some heads look at the whole memory. A softmax of "
    "term (a) alone is nearly uniform, one of (b) looks like the whole, and one of (d) prefers near tokens too but is "
    "flatter."
)
ROWS = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}


def training(setup: Setup) -> Job:
    """The run that is looked at."""
    return trainings(Arm(), setup, one_seed=True)[0]


def job(setup: Setup) -> Job:
    """The maps."""
    run = training(setup)
    words = (f"checkpoint={run.checkpoint}", *setup.profile.attention)
    return Job("attention", "attention", words, run.arm, needs=(run.name,))


def jobs(setup: Setup) -> list[Job]:
    """The run and its maps."""
    return [training(setup), job(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The figures, and the table of what they show."""
    maps = outcomes.result(job(setup), "attention.json")
    with np.load(setup.runs / job(setup).name / "attention.npz") as file:
        by_distance = {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
    figures = [
        outcomes.figure(
            job(setup), "by_distance", "Figure 5: attention by relative position, a row a head.", "Figure 5"
        ),
        outcomes.figure(
            job(setup), "text", "Figure 6: what targets look at, the top 20 % of the memory marked.", "Figure 6"
        ),
        outcomes.figure(
            job(setup), "terms", "Figure 7: the same as Figure 5 for a single term of the score.", "Figure 7"
        ),
    ]
    return {
        "id": "figures_5_to_7",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{len(maps['heads'])} heads, averaged over {maps['queries']:,} tokens of {maps['corpus']['name']} "
            f"({maps['split']}) that see all {maps['distances']} relative positions."
        ),
        "tables": [table(by_distance)],
        "figures": [figure for figure in figures if figure.get("png")],
    }


def table(by_distance: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Flatness, mean distance and likeness to the whole of every row of Figures 5 and 7; mean over heads."""
    rows = []
    for name, title in ROWS.items():
        if name in by_distance:
            weights, whole = shares(by_distance[name]), shares(by_distance["all"])
            rows.append(
                {
                    "arm": text(title),
                    "flatness": over_heads(flatness(weights), 3),
                    "distance": over_heads(mean_distance(weights), 1),
                    "unlike": None if name == "all" else over_heads(0.5 * np.abs(weights - whole).sum(axis=1), 3),
                }
            )
    length = by_distance["all"].shape[1]
    return {
        "id": "figures_5_to_7",
        "caption": "What Figures 5 and 7 show",
        "columns": [
            column("arm", "softmax of", "label"),
            column("flatness", "entropy, of the uniform's", "ours"),
            column("distance", "mean distance", "ours", "tokens"),
            column("unlike", "distance to all terms", "ours"),
        ],
        "rows": rows,
        "notes": [
            f"Of the averages over {length} relative positions, rescaled to sum to 1; mean and standard error over "
            f"heads. A uniform row has entropy 1 and mean distance {(length - 1) / 2:g}; the distance of two rows is "
            "half the sum of their absolute differences, 0 to 1.",
        ],
    }


def shares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row rescaled to sum to 1."""
    scaled: NDArray[np.float64] = rows / rows.sum(axis=1, keepdims=True)
    return scaled


def flatness(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy divided by that of the uniform distribution."""
    logs = np.log(np.where(rows > 0, rows, 1.0))
    result: NDArray[np.float64] = -(rows * logs).sum(axis=1) / math.log(rows.shape[1])
    return result


def mean_distance(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """In tokens; column j is j tokens back."""
    result: NDArray[np.float64] = rows @ np.arange(rows.shape[1], dtype=np.float64)
    return result


def over_heads(values: NDArray[np.float64], digits: int) -> Cell:
    """Mean and standard error."""
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    more = {} if error is None else {"standard_error": error}
    return number(float(values.mean()), digits, **more)
