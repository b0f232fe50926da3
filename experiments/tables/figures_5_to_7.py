"""Figures 5, 6 and 7: attention by relative position, with all terms in the score and with single ones.

Paper: nearby tokens dominate, but some heads attend to the whole memory. A softmax over term (a) alone is nearly
uniform, (b) alone looks like all terms, and (d) alone also prefers near tokens but is flatter.
Runs: `txl attention` on every run with recurrence, the relative encoding and the full loss, and on the same trained
with the other optimizer (Adam or Muon).
Writes: the first run's three figures, and the differences between terms within heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.arms import ON, Arm, trainings
from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.sections import (
    Difference,
    Section,
    copied_figures,
)
from experiments.tables.differences import with_effect
from experiments.tables.intervals import Array, of_repeats

TITLE = "Figures 5 to 7: where the heads look"
NEARLY_UNIFORM = 0.9
TERMS = ("all", "a", "b", "d")
FIGURES = {
    "by_distance": "Figure 5: attention by relative position, one row per head.",
    "text": "Figure 6: attention of single targets, the top 20 % of the memory marked.",
    "terms": "Figure 7: as Figure 5, for single terms of the score.",
}


@dataclass(frozen=True)
class Shape:
    """Shape of one term's attention rows, rescaled to sum to 1, by head.

    Attributes:
        flatness: entropy -Σ p ln p divided by the uniform distribution's.
        distance: mean distance Σ j p_j in tokens; column j is j tokens back.
        unlike: distance ½ Σ |p_j - q_j| to the row with all terms.
    """

    flatness: Array
    distance: Array
    unlike: Array


def jobs(setup: Setup) -> list[Job]:
    """Return the runs and their attention maps."""
    planned = []
    for runs in _runs(setup).values():
        for run in runs:
            planned += [run, _attention(run, setup)]
    return planned


def _runs(setup: Setup) -> dict[str, list[Job]]:
    """Return runs by optimizer: the profile's, then optimizers for which it has a recipe."""
    own = setup.config.optimizer.name
    runs = {own.capitalize(): trainings(ON, setup)}
    for name in ("adam", "muon"):
        if name in setup.profile.recipes and name != own:
            runs[name.capitalize()] = trainings(Arm(optimizer=name), setup)
    return runs


def _attention(run: Job, setup: Setup) -> Job:
    words = (f"checkpoint={run.checkpoint}", *setup.profile.attention)
    return Job(
        f"{run.name}-attention",
        "attention",
        words,
        run.arm,
        needs=(run.name,),
    )


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the figures and the differences."""
    finished: dict[str, list[Job]] = {}
    for optimizer, runs in _runs(setup).items():
        for run in runs:
            job = _attention(run, setup)
            if outcomes.has(job):
                finished.setdefault(optimizer, []).append(job)
    if not finished:
        return Section("figures_5_to_7", TITLE, "no attention is measured yet.")
    by_optimizer = {optimizer: _all_heads(outcomes, done) for optimizer, done in finished.items()}
    first = next(iter(finished.values()))[0]
    counts = [f"{len(done)} with {optimizer}" for optimizer, done in finished.items()]
    return Section(
        id="figures_5_to_7",
        title=TITLE,
        here=(
            f"Runs: {' and '.join(counts)}; txl attention {' '.join(setup.profile.attention)}: the "
            "average over tokens that see all relative positions. The terms are not unique: a "
            "constant added to every query q and taken from u and v changes no score, but moves "
            "weight between (a) and (c), and between (b) and (d), and nothing in training fixes "
            "it. The paper's terms are those as trained, as here. The figures are of the first "
            "run."
        ),
        figures=copied_figures(outcomes, first, FIGURES),
        differences=differences(by_optimizer),
    )


def _all_heads(outcomes: Outcomes, measured: list[Job]) -> dict[str, Array]:
    """Read all heads' rows from some measurements, by term: heads × relative positions."""
    files: dict[str, list[Array]] = {name: [] for name in TERMS}
    for job in measured:
        with np.load(outcomes.runs / job.name / "attention.npz") as file:
            for name in TERMS:
                files[name].append(np.asarray(file[name], dtype=np.float64))
    return {name: np.concatenate(heads) for name, heads in files.items()}


def shapes(maps: Mapping[str, Array]) -> dict[str, Shape]:
    """Measure each term's rows, heads × relative positions; `all` is the full score."""
    shares = {name: maps[name] / maps[name].sum(axis=1, keepdims=True) for name in TERMS}
    measured = {}
    for name, rows in shares.items():
        n_positions = rows.shape[1]
        logs = np.log(
            np.where(
                rows > 0,
                rows,
                1.0,
            )
        )
        measured[name] = Shape(
            flatness=-(rows * logs).sum(axis=1) / math.log(n_positions),
            distance=rows @ np.arange(n_positions, dtype=np.float64),
            unlike=0.5 * np.abs(rows - shares["all"]).sum(axis=1),
        )
    return measured


def differences(by_optimizer: Mapping[str, Mapping[str, Array]]) -> list[Difference]:
    """Return what the paper reads from Figure 7 as differences within heads; positive is as in the paper.

    (a) is flatter than `NEARLY_UNIFORM` times the uniform's entropy; (b) is nearer to all terms than (a) and (d) are;
    (d) looks at nearer tokens than (a), but is flatter than (b) (appendix D). An optimizer's repeats are
    all heads in its runs.

    Args:
        by_optimizer: attention by term, heads × relative positions.
    """
    rows = []
    for optimizer, maps in by_optimizer.items():
        shape = shapes(maps)
        a, b, d = shape["a"], shape["b"], shape["d"]
        limit = np.full_like(a.flatness, NEARLY_UNIFORM)
        nearly = f"entropy: (a) − {NEARLY_UNIFORM} of the uniform's"
        # Key, title, both sides, and the side that is 100 %.
        sides = [
            ("a_uniform", nearly, a.flatness, limit, limit),
            ("b_unlike_a", "distance to all terms: (a) − (b)", a.unlike, b.unlike, a.unlike),
            ("b_unlike_d", "distance to all terms: (d) − (b)", d.unlike, b.unlike, d.unlike),
            ("d_nearer", "mean distance in tokens: (a) − (d)", a.distance, d.distance, a.distance),
            (
                "d_flatter",
                "entropy, of the uniform's: (d) − (b)",
                d.flatness,
                b.flatness,
                b.flatness,
            ),
        ]
        for key, title, one, other, whole in sides:
            effect = of_repeats(one - other)
            percent = effect.times(100 / max(float(whole.mean()), 1e-12))
            name = f"terms_look_as_described/{optimizer}-{key}"
            rows.append(
                with_effect(
                    Difference(name, f"{optimizer}: {title}"),
                    effect,
                    percent,
                )
            )
    return rows
