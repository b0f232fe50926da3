"""Figures 5, 6 and 7: attention by relative position, of all terms of the score and of single ones.

Paper: nearby tokens dominate, but some heads attend to the whole memory. A softmax of term (a) alone is nearly
uniform, (b) alone looks like all terms, and (d) alone also prefers near tokens but is flatter.
Runs: `txl attention` on the first run with recurrence, the relative encoding and the full loss, or on the largest
published model that the profile trains.
Writes: the three figures, a table of their shapes, and the differences between terms within heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.report.sections import Number, Section, Table, copied_figures, label, ours
from experiments.tables.arms import Arm
from experiments.tables.arms import training as arm_training
from experiments.tables.comparisons import Comparison, comparisons_table
from experiments.tables.intervals import Array, of_repeats
from experiments.tables.main_results import largest_run

TITLE = "Figures 5 to 7: where the heads look"
PAPER = (
    "Averaged over the validation text, nearby tokens dominate, and some heads look at the whole memory. A softmax of "
    "term (a) alone is nearly uniform, one of (b) looks like the whole, and one of (d) prefers near tokens too but is "
    "flatter."
)
NEARLY_UNIFORM = 0.9
ROWS = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
FIGURES = {
    "by_distance": ("Figure 5: attention by relative position, one row per head.", "Figure 5"),
    "text": ("Figure 6: attention of single targets, the top 20 % of the memory marked.", "Figure 6"),
    "terms": ("Figure 7: as Figure 5, for single terms of the score.", "Figure 7"),
}


def training(setup: Setup) -> Job:
    """Return the run whose attention is measured; appendix E samples from it."""
    return largest_run(setup) or arm_training(Arm(), setup.profile.seeds[0], setup)


def jobs(setup: Setup) -> list[Job]:
    """Return the run and its attention maps."""
    return [training(setup), _attention(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the figures and the table of their shapes."""
    job = _attention(setup)
    maps = outcomes.result(job, "attention.json")
    with np.load(setup.runs / job.name / "attention.npz") as file:
        by_distance = {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
    return Section(
        id="figures_5_to_7",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{len(maps['heads'])} heads, averaged over {maps['queries']:,} tokens of {maps['corpus']['name']} "
            f"({maps['split']}) that see all {maps['distances']} relative positions."
        ),
        tables=(
            shape_table(by_distance),
            comparisons_table("figures_5_to_7", TITLE, None, 3, differences(by_distance)),
        ),
        figures=copied_figures(outcomes, job, FIGURES),
    )


def _attention(setup: Setup) -> Job:
    run = training(setup)
    words = (f"checkpoint={run.checkpoint}", *setup.profile.attention)
    return Job("attention", "attention", words, run.arm, needs=(run.name,))


def shape_table(by_distance: Mapping[str, Array]) -> Table:
    """Return entropy, mean distance and difference from all terms, each a mean over heads.

    Args:
        by_distance: attention by term, heads × relative positions; `all` is the full score.
    """
    flat, far, unlike = _shapes(by_distance)
    length = by_distance["all"].shape[1]
    return Table.filled(
        "figures_5_to_7",
        "Shapes of the rows of Figures 5 and 7",
        {name: name for name in ROWS},
        {
            label("arm", "softmax of"): lambda name: ROWS[name],
            ours("flatness", "entropy, of the uniform's"): lambda name: _over_heads(flat[name], 3),
            ours("distance", "mean distance", "tokens"): lambda name: _over_heads(far[name], 1),
            ours("unlike", "distance to all terms"): lambda name: (
                None if name == "all" else _over_heads(unlike[name], 3)
            ),
        },
        notes=(
            f"Of the averages over {length} relative positions, rescaled to sum to 1; mean and standard error over "
            f"heads. A uniform row has entropy 1 and mean distance {(length - 1) / 2:g}; the distance of two rows is "
            "half the sum of their absolute differences, 0 to 1.",
        ),
    )


def differences(by_distance: Mapping[str, Array]) -> list[Comparison]:
    """Return what the paper reads from Figure 7 as differences within heads; positive is as in the paper.

    (a) is flatter than `NEARLY_UNIFORM` of the uniform's entropy; (b) is nearer to all terms than (a) and (d) are; (d)
    looks at nearer tokens than (a), but is flatter than (b) (appendix D).
    """
    flat, far, unlike = _shapes(by_distance)
    limit = np.full_like(flat["a"], NEARLY_UNIFORM)
    parts = {
        "a_uniform": (f"entropy: (a) − {NEARLY_UNIFORM} of the uniform's", flat["a"], limit, limit),
        "b_unlike_a": ("distance to all terms: (a) − (b)", unlike["a"], unlike["b"], unlike["a"]),
        "b_unlike_d": ("distance to all terms: (d) − (b)", unlike["d"], unlike["b"], unlike["d"]),
        "d_nearer": ("mean distance in tokens: (a) − (d)", far["a"], far["d"], far["a"]),
        "d_flatter": ("entropy, of the uniform's: (d) − (b)", flat["d"], flat["b"], flat["b"]),
    }
    result = []
    for key, (title, one, other, reference) in parts.items():
        interval, scale = of_repeats(one - other), 100 / max(float(reference.mean()), 1e-12)
        result.append(Comparison(f"terms_look_as_described/{key}", title, interval, interval.times(scale)))
    return result


def _shapes(by_distance: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Measure each term's rows, rescaled to sum to 1, by head.

    Returns:
        entropy -Σ p ln p divided by that of the uniform distribution; mean distance Σ j p_j in tokens (column j is j
        tokens back); distance ½ Σ |p_j - q_j| to the row of all terms.
    """
    shares = {name: by_distance[name] / by_distance[name].sum(axis=1, keepdims=True) for name in ROWS}
    flat, far, unlike = {}, {}, {}
    for name, rows in shares.items():
        logs = np.log(np.where(rows > 0, rows, 1.0))
        flat[name] = -(rows * logs).sum(axis=1) / math.log(rows.shape[1])
        far[name] = rows @ np.arange(rows.shape[1], dtype=np.float64)
        unlike[name] = 0.5 * np.abs(rows - shares["all"]).sum(axis=1)
    return flat, far, unlike


def _over_heads(values: Array, digits: int) -> Number:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return Number(float(values.mean()), digits, error)
