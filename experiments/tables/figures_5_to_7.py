"""Figures 5, 6 and 7: attention by relative position, of all terms of the score and of single ones.

Paper: nearby tokens dominate, but some heads attend to the whole memory. A softmax of term (a) alone is nearly
uniform, (b) alone looks like all terms, and (d) alone also prefers near tokens but is flatter.
Runs: `txl attention` on every run with recurrence, the relative encoding and the full loss, and on the same trained
with Adam, or on the largest published model that the profile trains.
Writes: the three figures of the first run, a table of their shapes, and the differences between terms within heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.report.sections import Number, Section, Table, copied_figures, label, ours
from experiments.tables.arms import ADAM, Arm, kept, trainings
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
SPLITS = {"trained": ("as trained", ""), "centred": ("q centred", "_centred")}  # in words, and in the names of terms
ROWS = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
PARTS = {
    "a_uniform": f"entropy: (a) − {NEARLY_UNIFORM} of the uniform's",
    "b_unlike_a": "distance to all terms: (a) − (b)",
    "b_unlike_d": "distance to all terms: (d) − (b)",
    "d_nearer": "mean distance in tokens: (a) − (d)",
    "d_flatter": "entropy, of the uniform's: (d) − (b)",
}
FIGURES = {
    "by_distance": ("Figure 5: attention by relative position, one row per head.", "Figure 5"),
    "text": ("Figure 6: attention of single targets, the top 20 % of the memory marked.", "Figure 6"),
    "terms": ("Figure 7: as Figure 5, for single terms of the score.", "Figure 7"),
}


def training(setup: Setup) -> Job:
    """Return the run whose attention is measured; appendix E samples from it."""
    return largest_run(setup) or arm_training(Arm(), setup.profile.seeds[0], setup)


def jobs(setup: Setup) -> list[Job]:
    """Return the runs and their attention maps."""
    runs, measured = _runs(setup), _attention(setup)
    return [job for name in runs for pair in zip(runs[name], measured[name], strict=True) for job in pair]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the figures and the table of their shapes.

    Raises:
        Pending: the first run is not finished.
    """
    measured = _attention(setup)
    first = next(iter(measured.values()))[0]
    maps = outcomes.result(first, "attention.json")
    finished = {name: list(filter(outcomes.has, planned)) for name, planned in measured.items()}
    by_distance = {name: _all_heads(setup, found) for name, found in finished.items() if found}
    pending = {name: len(measured[name]) - len(finished[name]) for name in measured}
    counts = " and ".join(f"{len(found)} with {name}" for name, found in finished.items())
    return Section(
        id="figures_5_to_7",
        title=TITLE,
        paper=PAPER,
        here=(
            f"Runs: {counts}, of {len(maps['heads'])} heads each, averaged over {maps['queries']:,} tokens of "
            f"{maps['corpus']['name']} ({maps['split']}) that see all {maps['distances']} relative positions. The "
            "terms are not unique: a constant added to every query q and taken from u and v changes no score, but "
            "moves weight between (a) and (c), and between (b) and (d), and nothing in training fixes it. The paper's "
            "terms are those as trained. With q centred, the mean query of each head is moved into u and v. The "
            "figures are of the first run, as trained."
        ),
        tables=(
            shape_table(by_distance),
            comparisons_table("figures_5_to_7", TITLE, None, 3, differences(by_distance, pending)),
        ),
        figures=copied_figures(outcomes, first, FIGURES),
    )


def _runs(setup: Setup) -> dict[str, list[Job]]:
    """Return the runs by the name of their optimizer: the profile's own first, then Adam if that is another."""
    own = setup.config.optimizer.name.capitalize()
    if published := largest_run(setup):
        return {own: [published]}
    adam = adam_arm(setup)
    return {own: trainings(Arm(), setup), **({"Adam": trainings(adam, setup)} if adam else {})}


def adam_arm(setup: Setup) -> Arm | None:
    """Return the arm with Adam; None if the profile's own optimizer is Adam, or it leaves the arm out."""
    arms = kept([Arm(variant=ADAM)], setup)
    return arms[0] if arms and setup.config.optimizer.name != "adam" else None


def _attention(setup: Setup) -> dict[str, list[Job]]:
    """Return the attention maps of the runs by the name of their optimizer."""
    found: dict[str, list[Job]] = {}
    for name, runs in _runs(setup).items():
        stem = f"attention-{name.lower()}" if found else "attention"
        for run in runs:
            words = (f"checkpoint={run.checkpoint}", *setup.profile.attention)
            job = Job(f"{stem}-seed{run.seed}", "attention", words, run.arm, needs=(run.name,))
            found.setdefault(name, []).append(job)
    return found


def _all_heads(setup: Setup, found: Sequence[Job]) -> dict[str, Array]:
    """Read the rows of all heads of some measurements, by term."""
    files = []
    for job in found:
        with np.load(setup.runs / job.name / "attention.npz") as file:
            files.append({name: np.asarray(file[name], dtype=np.float64) for name in file.files})
    return {name: np.concatenate([rows[name] for rows in files]) for name in files[0]}


def shape_table(by_distance: Mapping[str, Mapping[str, Array]]) -> Table:
    """Return entropy, mean distance and difference from all terms, each a mean over heads.

    Args:
        by_distance: by optimizer, attention by term, heads × relative positions; `all` is the full score.
    """
    rows = {}
    for optimizer, maps in by_distance.items():
        for split, (words, suffix) in SPLITS.items():
            shapes = _shapes(maps, suffix)
            for name in ROWS:
                title = f"{optimizer}, {words}: {ROWS[name]}"
                rows[f"{optimizer.lower()}-{split}-{name}"] = (title, name, [of_term[name] for of_term in shapes])
    length = next(iter(by_distance.values()))["all"].shape[1]
    return Table.filled(
        "figures_5_to_7",
        "Shapes of the rows of Figures 5 and 7",
        rows,
        {
            label("arm", "softmax of"): lambda row: row[0],
            ours("flatness", "entropy, of the uniform's"): lambda row: _over_heads(row[2][0], 3),
            ours("distance", "mean distance", "tokens"): lambda row: _over_heads(row[2][1], 1),
            ours("unlike", "distance to all terms"): lambda row: None if row[1] == "all" else _over_heads(row[2][2], 3),
        },
        notes=(
            f"Of the averages over {length} relative positions, rescaled to sum to 1; mean and standard error over "
            f"heads of all runs. A uniform row has entropy 1 and mean distance {(length - 1) / 2:g}; the distance of "
            "two rows is half the sum of their absolute differences, 0 to 1.",
        ),
    )


def differences(by_distance: Mapping[str, Mapping[str, Array]], pending: Mapping[str, int]) -> list[Comparison]:
    """Return what the paper reads from Figure 7 as differences within heads; positive is as in the paper.

    (a) is flatter than `NEARLY_UNIFORM` of the uniform's entropy; (b) is nearer to all terms than (a) and (d) are; (d)
    looks at nearer tokens than (a), but is flatter than (b) (appendix D). For each optimizer, as trained and with q
    centred; the heads of all its runs are the repeats.

    Args:
        by_distance: by optimizer with a finished run, attention by term, heads × relative positions.
        pending: measurements to come, by optimizer.
    """
    result = []
    for optimizer, to_come in pending.items():
        for split, (words, suffix) in SPLITS.items():
            sides = _sides(by_distance[optimizer], suffix) if optimizer in by_distance else {}
            for part, title in PARTS.items():
                key = f"terms_look_as_described/{optimizer.lower()}-{split}-{part}"
                interval = relative = None
                if sides:
                    one, other, reference = sides[part]
                    interval = of_repeats(one - other)
                    relative = interval.times(100 / max(float(reference.mean()), 1e-12))
                result.append(Comparison(key, f"{optimizer}, {words}: {title}", interval, relative, pending=to_come))
    return result


def _sides(maps: Mapping[str, Array], suffix: str) -> dict[str, tuple[Array, Array, Array]]:
    """Return both sides of each difference by head, and the side that is 100 %."""
    flat, far, unlike = _shapes(maps, suffix)
    limit = np.full_like(flat["a"], NEARLY_UNIFORM)
    return {
        "a_uniform": (flat["a"], limit, limit),
        "b_unlike_a": (unlike["a"], unlike["b"], unlike["a"]),
        "b_unlike_d": (unlike["d"], unlike["b"], unlike["d"]),
        "d_nearer": (far["a"], far["d"], far["a"]),
        "d_flatter": (flat["d"], flat["b"], flat["b"]),
    }


def _shapes(maps: Mapping[str, Array], suffix: str) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Measure each term's rows, rescaled to sum to 1, by head; `suffix` chooses the split into terms.

    Returns:
        entropy -Σ p ln p divided by that of the uniform distribution; mean distance Σ j p_j in tokens (column j is j
        tokens back); distance ½ Σ |p_j - q_j| to the row of all terms.
    """
    rows_of = {name: maps[name if name == "all" else name + suffix] for name in ROWS}
    shares = {name: rows / rows.sum(axis=1, keepdims=True) for name, rows in rows_of.items()}
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
