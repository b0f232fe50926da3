"""Figures 5, 6 and 7: attention by relative position, of all terms of the score and of single ones.

Paper: nearby tokens dominate, but some heads attend to the whole memory. A softmax of term (a) alone is nearly
uniform, (b) alone looks like all terms, and (d) alone also prefers near tokens but is flatter.
Runs: `txl attention` on every run with recurrence, the relative encoding and the full loss, and on the same trained
with the other optimizer (Adam or Muon), or on the largest published model that the profile trains.
Writes: the three figures of the first run, a table of their shapes, and the differences between terms within heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.arms import ON, Arm, trainings
from experiments.engine.jobs import Job, Outcomes, Pending
from experiments.engine.profiles import Setup
from experiments.sections import Difference, Number, Section, Table, copied_figures, label, ours
from experiments.tables.differences import row
from experiments.tables.intervals import Array, of_repeats
from experiments.tables.main_results import largest_run

TITLE = "Figures 5 to 7: where the heads look"
NEARLY_UNIFORM = 0.9
ROWS = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
FIGURES = {
    "by_distance": "Figure 5: attention by relative position, one row per head.",
    "text": "Figure 6: attention of single targets, the top 20 % of the memory marked.",
    "terms": "Figure 7: as Figure 5, for single terms of the score.",
}


def jobs(setup: Setup) -> list[Job]:
    """Return the runs and their attention maps."""
    return [job for measured in _measured(setup).values() for pair in measured for job in pair]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the figures, the table of their shapes and the differences.

    Raises:
        Pending: no run is measured.
    """
    maps_of = {optimizer: [job for _, job in measured] for optimizer, measured in _measured(setup).items()}
    finished = {optimizer: found for optimizer, jobs in maps_of.items() if (found := list(filter(outcomes.has, jobs)))}
    if not finished:
        raise Pending("no attention is measured yet")
    by_distance = {optimizer: _all_heads(outcomes, found) for optimizer, found in finished.items()}
    first = next(iter(finished.values()))[0]
    maps = outcomes.result(first, "attention.json")
    counts = " and ".join(f"{len(found)} with {optimizer}" for optimizer, found in finished.items())
    return Section(
        id="figures_5_to_7",
        title=TITLE,
        here=(
            f"Runs: {counts}, of {len(maps['heads'])} heads each, averaged over {maps['queries']:,} tokens of "
            f"{maps['corpus']['name']} ({maps['split']}) that see all {maps['distances']} relative positions. The "
            "terms are not unique: a constant added to every query q and taken from u and v changes no score, but "
            "moves weight between (a) and (c), and between (b) and (d), and nothing in training fixes it. The paper's "
            "terms are those as trained, as here. The figures are of the first run."
        ),
        tables=(shape_table(by_distance),),
        figures=copied_figures(outcomes, first, FIGURES),
        differences=tuple(differences(by_distance)),
    )


def _measured(setup: Setup) -> dict[str, list[tuple[Job, Job]]]:
    """Return runs with their attention maps by optimizer: the profile's own, then those of which it has a recipe."""
    own, published = setup.config.optimizer.name, largest_run(setup)
    runs = {own.capitalize(): [published] if published else trainings(ON, setup)}
    for name in ("adam", "muon"):
        if name in setup.profile.recipes and name != own and not published:
            runs[name.capitalize()] = trainings(Arm(optimizer=name), setup)
    return {
        optimizer: [(run, _attention(run, setup)) for run in of_optimizer] for optimizer, of_optimizer in runs.items()
    }


def _attention(run: Job, setup: Setup) -> Job:
    words = (f"checkpoint={run.checkpoint}", *setup.profile.attention)
    return Job(f"{run.name}-attention", "attention", words, run.arm, needs=(run.name,))


def _all_heads(outcomes: Outcomes, found: Sequence[Job]) -> dict[str, Array]:
    """Read the rows of all heads of some measurements, by term: heads × relative positions."""
    files = []
    for job in found:
        with np.load(outcomes.runs / job.name / "attention.npz") as file:
            files.append({name: np.asarray(file[name], dtype=np.float64) for name in ROWS})
    return {name: np.concatenate([rows[name] for rows in files]) for name in ROWS}


def shape_table(by_distance: Mapping[str, Mapping[str, Array]]) -> Table:
    """Return entropy, mean distance and difference from all terms, each a mean over heads.

    Args:
        by_distance: by optimizer, attention by term, heads × relative positions; `all` is the full score.
    """
    rows = {}
    for optimizer, maps in by_distance.items():
        flat, far, unlike = _shapes(maps)
        for name, words in ROWS.items():
            rows[f"{optimizer.lower()}-{name}"] = (f"{optimizer}: {words}", flat[name], far[name], unlike[name])
    length = next(iter(by_distance.values()))["all"].shape[1]
    return Table.filled(
        "figures_5_to_7",
        "Shapes of the rows of Figures 5 and 7",
        rows,
        {
            label("arm", "softmax of"): lambda row: row[0],
            ours("flatness", "entropy", "of the uniform's"): lambda row: _over_heads(row[1], 3),
            ours("distance", "mean distance", "tokens"): lambda row: _over_heads(row[2], 1),
            ours("unlike", "distance to all terms", "0 to 1"): lambda row: _over_heads(row[3], 3),
        },
        notes=(
            f"Of the averages over {length} relative positions, rescaled to sum to 1; mean and standard error over "
            f"heads of all runs. A uniform row has entropy 1 and mean distance {(length - 1) / 2:g}; the distance of "
            "two rows is half the sum of their absolute differences, 0 to 1.",
        ),
    )


def differences(by_distance: Mapping[str, Mapping[str, Array]]) -> list[Difference]:
    """Return what the paper reads from Figure 7 as differences within heads; positive is as in the paper.

    (a) is flatter than `NEARLY_UNIFORM` of the uniform's entropy; (b) is nearer to all terms than (a) and (d) are; (d)
    looks at nearer tokens than (a), but is flatter than (b) (appendix D). The heads of all runs of an optimizer are the
    repeats.

    Args:
        by_distance: by optimizer, attention by term, heads × relative positions.
    """
    found = []
    for optimizer, maps in by_distance.items():
        flat, far, unlike = _shapes(maps)
        limit = np.full_like(flat["a"], NEARLY_UNIFORM)
        sides = {  # key: both sides, and the side that is 100 %
            "a_uniform": (f"entropy: (a) − {NEARLY_UNIFORM} of the uniform's", flat["a"], limit, limit),
            "b_unlike_a": ("distance to all terms: (a) − (b)", unlike["a"], unlike["b"], unlike["a"]),
            "b_unlike_d": ("distance to all terms: (d) − (b)", unlike["d"], unlike["b"], unlike["d"]),
            "d_nearer": ("mean distance in tokens: (a) − (d)", far["a"], far["d"], far["a"]),
            "d_flatter": ("entropy, of the uniform's: (d) − (b)", flat["d"], flat["b"], flat["b"]),
        }
        for key, (title, one, other, reference) in sides.items():
            effect = of_repeats(one - other)
            percent = effect.times(100 / max(float(reference.mean()), 1e-12))
            found.append(
                row(f"terms_look_as_described/{optimizer}-{key}", f"{optimizer}: {title}", None, effect, percent)
            )
    return found


def _shapes(maps: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Measure each term's rows, rescaled to sum to 1, by head.

    Returns:
        entropy -Σ p ln p divided by that of the uniform distribution; mean distance Σ j p_j in tokens (column j is j
        tokens back); distance ½ Σ |p_j - q_j| to the row of all terms.
    """
    shares = {name: maps[name] / maps[name].sum(axis=1, keepdims=True) for name in ROWS}
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
