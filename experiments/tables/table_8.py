"""Table 8 and Figures 3 and 4: relative effective context length (RECL, appendix C).

Paper: at WikiText-103's hardest tenth of positions, 900 words for Transformer-XL against 500 and 400 for an equally
large QRNN and LSTM, and 700 against 400, 300 and 128 in the ablation.
Runs: an LSTM and a QRNN with as many parameters; the other models are Table 6's. `txl recl` for both groups and
each seed that all models in the group have, each time at other positions.
Writes: the table, the differences in RECL and guarded RECL, the gains (Figure 3) and the loss by context (Figure 4).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from experiments.arms import OFF, ON, Arm, in_precision_of_training, trainings
from experiments.claims import TEXTS
from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_8
from experiments.sections import (
    DIGITS,
    Cell,
    Column,
    Difference,
    Section,
    Table,
    cell,
    copied_figures,
    over_seeds,
)
from experiments.tables.differences import with_effect
from experiments.tables.intervals import Interval, Spread, seed_spread, student

TITLE = "Table 8, Figures 3 and 4: relative effective context length"
ARMS = {
    (1, "Transformer-XL"): ON,
    (1, "QRNN"): Arm(baseline="qrnn"),
    (1, "LSTM"): Arm(baseline="lstm"),
    (2, "Transformer-XL"): ON,
    (2, "Shaw encoding"): Arm(encoding="shaw"),
    (2, "no recurrence"): OFF,
    (2, "Transformer"): Arm(False, "al_rfou", "half"),
}
GROUPS = (1, 2)
LONGEST = "Transformer-XL"
FRACTIONS = ("0.1", "0.5", "1.0")
Name: TypeAlias = tuple[int, str]
"""Group and name of a model."""
Models: TypeAlias = Mapping[Name, Mapping[int, dict[str, Any]]]
"""Entries of models in `recl.json`, by seed."""


def jobs(setup: Setup) -> list[Job]:
    """Return the trainings for all models, and both groups' RECL for each seed."""
    planned = []
    measured = []
    for group in GROUPS:
        runs = _runs(group, setup)
        for seed in _seeds(runs):
            planned += [by_seed[seed] for by_seed in runs.values()]
            measured.append(_measurement(group, seed, setup))
    return [*dict.fromkeys(planned), *measured]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, the differences, and both groups' figures."""
    models: dict[Name, dict[int, dict[str, Any]]] = {}
    planned = []
    figures = []
    for group in GROUPS:
        runs = _runs(group, setup)
        planned += [(group, name) for name in runs]
        seeds = _seeds(runs)
        for seed in seeds:
            job = _measurement(group, seed, setup)
            if seed == seeds[0]:
                figures += copied_figures(outcomes, job, _captions(group))
            if outcomes.has(job):
                for model in outcomes.result(job, "recl.json")["models"]:
                    models.setdefault((group, model["name"]), {})[seed] = model
    return Section(
        id="table_8",
        title=TITLE,
        here=f"txl recl {' '.join(setup.profile.recl)}. {TEXTS['recl']}",
        tables=[_table(models, planned, outcomes.unit)],
        figures=figures,
        differences=[
            *differences(models, planned, "value"),
            *differences(models, planned, "guarded"),
        ],
    )


def _runs(group: int, setup: Setup) -> dict[str, dict[int, Job]]:
    """Return the runs of each trained model in a group, by seed."""
    runs = {}
    for name, arm in ARMS.items():
        by_seed = {run.seed or 0: run for run in trainings(arm, setup)}
        if name[0] == group and by_seed:
            runs[name[1]] = by_seed
    return runs


def _seeds(runs: Mapping[str, Mapping[int, Job]]) -> list[int]:
    """Return the seeds that all models in a group have."""
    return sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))


def _measurement(group: int, seed: int, setup: Setup) -> Job:
    """Return the job that measures a group's RECL."""
    members = {name: by_seed[seed] for name, by_seed in _runs(group, setup).items()}
    checkpoints = ",".join(run.checkpoint for run in members.values())
    names = ",".join(f"'{name}'" for name in members)
    words = (
        f"checkpoints=[{checkpoints}]",
        f"names=[{names}]",
        "documents=ignore",
        *in_precision_of_training(setup.profile.recl, setup),
        f"seed={seed}",
        f"position_seed={seed}",
    )
    needs = tuple(run.name for run in members.values())
    arm = f"group {group}, seed {seed}"
    return Job(
        f"recl-group{group}-seed{seed}",
        "recl",
        words,
        arm,
        needs=needs,
    )


def _captions(group: int) -> dict[str, str]:
    return {
        "gains_r0.1": (
            f"Figure 3, group {group}: gain of a longer context, at the hardest tenth of positions."
        ),
        "contexts": f"Figure 4, group {group}: loss by context, all positions.",
    }


@dataclass(frozen=True)
class Length:
    """A model's effective context length.

    Attributes:
        by_seed: lengths in tokens.
        is_bound: whether one may lie beyond the grid.
    """

    by_seed: dict[int, float]
    is_bound: bool

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.mean(self.by_seed.values())


def length_of(model: Mapping[int, dict[str, Any]], r: str, kind: str) -> Length:
    """Return a model's effective context length; `kind` is value or guarded."""
    flag = {"value": "at_least", "guarded": "guarded_at_least"}[kind]
    entries = {seed: entry["recl"][r] for seed, entry in model.items()}
    by_seed = {seed: entry[kind] for seed, entry in entries.items()}
    return Length(by_seed, any(entry[flag] for entry in entries.values()))


def differences(models: Models, planned: Sequence[Name], kind: str) -> list[Difference]:
    """Return how much longer Transformer-XL's RECL is at r = 0.1 than each other model's in its group.

    Means over the seeds, with ends by Student's t; the variance between seeds (other models and other positions) is
    pooled over both groups' differences. A length that may lie beyond the grid leaves its side of the interval open.

    Args:
        models: entries from `recl.json`.
        planned: models; without a result a model has a difference without an effect.
        kind: value or guarded; the paper has no guarded RECL.
    """
    lengths = {
        name: length_of(
            model,
            "0.1",
            kind,
        )
        for name, model in models.items()
    }
    others = [name for name in planned if name[1] != LONGEST]
    longer = {}
    for name in others:
        if name in lengths:
            own = lengths[name[0], LONGEST].by_seed
            other_lengths = lengths[name].by_seed
            longer[name] = {seed: own[seed] - other_lengths[seed] for seed in other_lengths}
    spread = seed_spread([[by_seed] for by_seed in longer.values()])
    rows = []
    for name in others:
        row = _difference(name, kind)
        if name in longer:
            other = lengths[name]
            effect = _interval(
                longer[name],
                spread,
                lengths[name[0], LONGEST],
                other,
            )
            row = with_effect(
                row,
                effect,
                effect.times(100 / max(1.0, other.mean)),
            )
        rows.append(row)
    return rows


def _difference(name: Name, kind: str) -> Difference:
    """Return a model's difference without its effect."""
    group, model = name
    key = f"recl_order/group{group}-{ARMS[name].key}"
    title = f"group {group}: {LONGEST} − {model}"
    if kind == "guarded":
        return Difference(
            f"{key}-guarded",
            f"{title}, guarded RECL",
            "tokens",
        )
    in_paper = 100 * (TABLE_8[group, LONGEST]["0.1"] / TABLE_8[name]["0.1"] - 1)
    return Difference(key, f"{title}, RECL", "tokens", paper=in_paper)


def _interval(longer: Mapping[int, float], spread: Spread, own: Length, other: Length) -> Interval:
    """Return the mean over seeds with its interval, open where a length may lie beyond the grid."""
    effect = statistics.mean(longer.values())
    low = None
    high = None
    if spread.freedom:
        half = student(spread.freedom) * math.sqrt(spread.variance / len(longer))
        if not other.is_bound:
            low = effect - half
        if not own.is_bound:
            high = effect + half
    return Interval(effect, low, high)


def _table(models: Models, planned: Sequence[Name], unit: str) -> Table:
    """Return means over the seeds: RECL, guarded RECL and the loss at the longest context."""
    columns = [
        Column("label", "arm"),
        *(
            Column(
                "ours",
                f"r{r}",
                f"RECL, r = {r}",
                "tokens ↑",
            )
            for r in FRACTIONS
        ),
        Column("ours", "guarded", "guarded RECL, r = 0.1", "tokens ↑"),
        Column("ours", "loss", "loss with the longest context", unit),
        *(
            Column(
                "paper",
                f"paper_r{r}",
                f"RECL, r = {r}",
                "words ↑",
            )
            for r in FRACTIONS
        ),
    ]
    rows = {}
    for name in planned:
        cells: dict[str, Cell] = {"arm": f"group {name[0]}: {name[1]}"}
        for r in FRACTIONS:
            cells[f"paper_r{r}"] = cell(TABLE_8[name][r], 0)
            if name in models:
                cells[f"r{r}"] = _length_cell(
                    length_of(
                        models[name],
                        r,
                        "value",
                    )
                )
        if name in models:
            cells["guarded"] = _length_cell(
                length_of(
                    models[name],
                    "0.1",
                    "guarded",
                )
            )
            losses = {seed: model[unit][-1] for seed, model in models[name].items()}
            cells["loss"] = over_seeds(losses, DIGITS[unit])
        rows[f"group{name[0]}-{ARMS[name].key}"] = cells
    return Table("table_8", TITLE, columns, rows)


def _length_cell(length: Length) -> Cell:
    return replace(over_seeds(length.by_seed, 0), at_least=length.is_bound or None)
