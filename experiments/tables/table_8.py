"""Table 8 and Figures 3 and 4: relative effective context length (RECL, appendix C).

Paper: for the hardest tenth of positions of WikiText-103, 900 words for Transformer-XL against 500 and 400 for QRNN
and LSTM of equal size, and 700 against 400, 300 and 128 in the ablation.
Runs: an LSTM and a QRNN with as many parameters; the other models are Table 6's. Group 1 has the standard model of
Table 1 where the profile trains it, as in the paper. `txl recl` for each of both groups and each seed that all models
of the group have, at positions of its own.
Writes: the table, the differences of RECL and of guarded RECL, the gains (Figure 3) and the loss by context (Figure 4).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from experiments.arms import OFF, ON, Arm, in_precision_of_training, kept, training, trainings
from experiments.claims import TEXTS
from experiments.engine.jobs import Job, Outcomes, Pending
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_8
from experiments.sections import (
    DIGITS,
    Cell,
    Difference,
    Figure,
    Section,
    Table,
    cell,
    copied_figures,
    label,
    ours,
    over_seeds,
    paper,
)
from experiments.tables.differences import row
from experiments.tables.intervals import Interval, seed_spread, student
from experiments.tables.main_results import standard_run

TITLE = "Table 8, Figures 3 and 4: relative effective context length"
GROUPS: dict[int, dict[str, Arm]] = {
    1: {"Transformer-XL": ON, "QRNN": Arm(baseline="qrnn"), "LSTM": Arm(baseline="lstm")},
    2: {
        "Transformer-XL": ON,
        "Shaw encoding": Arm(True, "shaw"),
        "no recurrence": OFF,
        "Transformer": Arm(False, "al_rfou", "half"),
    },
}
LONGEST, FRACTIONS = "Transformer-XL", ("0.1", "0.5", "1.0")
Results: TypeAlias = Mapping[int, Mapping[int, dict[str, Any]]]
"""Contents of `recl.json` by seed, by group."""


def row_key(group: int, arm: Arm) -> str:
    """Return the key of an arm's row; an arm may be in both groups."""
    return f"group{group}-{arm.key}"


def jobs(setup: Setup) -> list[Job]:
    """Return the trainings of all models, and the RECL of both groups for each seed."""
    measured = [(group, seed) for group in GROUPS for seed in _seeds(group, setup)]
    trained = {run.name: run for group, seed in measured for run in _runs(group, setup, seed).values()}
    return [*trained.values(), *(_recl(group, setup, seed) for group, seed in measured)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, the differences, and the figures of both groups."""
    results: dict[int, dict[int, dict[str, Any]]] = {}
    for group in GROUPS:
        done = {seed: job for seed in _seeds(group, setup) if outcomes.has(job := _recl(group, setup, seed))}
        if done:
            results[group] = {seed: outcomes.result(job, "recl.json") for seed, job in done.items()}
    planned = [(group, name) for group in GROUPS for name in _runs(group, setup, 1)]
    here = "no RECL is measured yet."
    for one in [result for by_seed in results.values() for result in by_seed.values()][:1]:
        here = (
            f"Losses at {one['positions']['number']:,} positions of {one['corpus']['name']} ({one['split']}), in "
            f"{one['positions']['blocks']} blocks over the whole text, each with exactly c tokens of context; "
            f"c grows from {one['contexts'][0]} to {one['contexts'][-1]} in steps of {one['step']} (the paper's are of "
            "100 words)."
        )
    return Section(
        id="table_8",
        title=TITLE,
        here=f"{here} {TEXTS['recl']}{' Group 1 has the standard model of Table 1.' if standard_run(setup) else ''}",
        tables=(_table(results, planned, outcomes.unit),),
        figures=tuple(figure for group in GROUPS for figure in _figures(group, setup, outcomes)),
        differences=(
            *_differences(results, "RECL", "value", "at_least", planned),
            *_differences(results, "guarded RECL", "guarded", "guarded_at_least", planned),
        ),
    )


def _differences(
    results: Results, title: str, value: str, at_least: str, planned: Sequence[tuple[int, str]] = ()
) -> list[Difference]:
    """Return how much longer the RECL of Transformer-XL is at r = 0.1 than that of each other model of its group.

    Means over the seeds, with ends by Student's t; the variance between seeds, which have other models and other
    positions, is pooled over the differences of both groups. A length that may lie beyond the grid leaves its side of
    the interval open.

    Args:
        results: `recl.json` by seed, by group.
        title: kind of RECL, in words.
        value: its name in `recl.json`.
        at_least: name there of whether it may lie beyond the grid.
        planned: group and name of models, which have a difference without an effect while they have no result.
    """
    lengths = {
        (group, name): {seed: _models(result)[name]["recl"]["0.1"] for seed, result in by_seed.items()}
        for group, by_seed in results.items()
        for name in _models(next(iter(by_seed.values())))
    }
    longer = {
        (group, name): {seed: lengths[group, LONGEST][seed][value] - of_seeds[seed][value] for seed in of_seeds}
        for (group, name), of_seeds in lengths.items()
        if name != LONGEST
    }
    spread = seed_spread([[by_seed] for by_seed in longer.values()])
    theirs = {(row.group, row.model): row.recl[0.1] for row in TABLE_8}
    found = []
    for group, name in dict.fromkeys([*longer, *(one for one in planned if one[1] != LONGEST)]):
        paper = 100 * (theirs[group, LONGEST] / theirs[group, name] - 1) if value == "value" else None
        key = f"recl_order/{row_key(group, GROUPS[group][name])}{'-guarded' * (value == 'guarded')}"
        words = f"group {group}: {LONGEST} − {name}, {title}"
        if (group, name) not in longer:
            found.append(Difference(key, words, "tokens", paper=paper))
            continue
        by_seed = longer[group, name]
        own, other = lengths[group, LONGEST].values(), lengths[group, name].values()
        effect, low, high = statistics.mean(by_seed.values()), None, None
        if spread.freedom:
            half = student(spread.freedom) * math.sqrt(spread.variance / len(by_seed))
            low = None if any(length[at_least] for length in other) else effect - half
            high = None if any(length[at_least] for length in own) else effect + half
        difference = Interval(effect, low, high)
        in_percent = difference.times(100 / max(1.0, statistics.mean(length[value] for length in other)))
        found.append(row(key, words, "tokens", difference, in_percent, paper))
    return found


def _models(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in result["models"]}


def _seeds(group: int, setup: Setup) -> list[int]:
    """Seeds of which every model of a group has a run."""
    if group == 1 and standard_run(setup):
        return [1]  # the standard model is trained once
    of_arms = [{run.seed or 0 for run in trainings(arm, setup)} for arm in kept(GROUPS[group].values(), setup)]
    return sorted(set.intersection(*of_arms))


def _runs(group: int, setup: Setup, seed: int) -> dict[str, Job]:
    """Run of each model of a group with a seed."""
    runs = {name: training(arm, seed, setup) for name, arm in GROUPS[group].items() if kept([arm], setup)}
    standard = standard_run(setup)
    return {**runs, LONGEST: standard} if group == 1 and standard else runs


def _recl(group: int, setup: Setup, seed: int) -> Job:
    """Job that measures the RECL of a group of runs."""
    members = _runs(group, setup, seed)
    checkpoints = ",".join(run.checkpoint for run in members.values())
    names = ",".join(f"'{member}'" for member in members)
    words = [f"checkpoints=[{checkpoints}]", f"names=[{names}]", "documents=ignore"]
    words += [*in_precision_of_training(setup.profile.recl, setup), f"seed={seed}", f"position_seed={seed}"]
    needs = tuple(run.name for run in members.values())
    return Job(f"recl-group{group}-seed{seed}", "recl", tuple(words), f"group {group}, seed {seed}", needs=needs)


def _figures(group: int, setup: Setup, outcomes: Outcomes) -> tuple[Figure, ...]:
    captions = {
        "gains_r0.1": f"Figure 3, group {group}: gain of a longer context, at the hardest tenth of positions.",
        "contexts": f"Figure 4, group {group}: loss by context, all positions.",
        "differences": f"Figure 4, group {group}, as differences: loss minus that of {LONGEST}, ± standard error of "
        "the difference over blocks of positions.",
    }
    return copied_figures(outcomes, _recl(group, setup, _seeds(group, setup)[0]), captions)


def _table(results: Results, planned: Sequence[tuple[int, str]], unit: str) -> Table:
    """Means over the seeds of RECL by group, model and r, of guarded RECL, and of the loss at the longest context."""
    theirs = {(row.group, row.model): row.recl for row in TABLE_8}

    def models(row: tuple[int, str]) -> dict[int, dict[str, Any]]:
        if row[0] not in results:
            raise Pending(row[1])
        return {seed: _models(result)[row[1]] for seed, result in results[row[0]].items()}

    def here(r: str, value: str, at_least: str, row: tuple[int, str]) -> Cell:
        lengths = {seed: model["recl"][r] for seed, model in models(row).items()}
        mean = over_seeds({seed: length[value] for seed, length in lengths.items()}, 0)
        return replace(mean, at_least=any(length[at_least] for length in lengths.values()) or None)

    def of_paper(r: str, row: tuple[int, str]) -> Cell:
        return cell(theirs[row][float(r)], 0)

    return Table.filled(
        "table_8",
        TITLE,
        {row_key(group, GROUPS[group][name]): (group, name) for group, name in planned},
        {
            label("arm"): lambda row: f"group {row[0]}: {row[1]}",
            **{ours(f"r{r}", f"RECL, r = {r}", "tokens ↑"): partial(here, r, "value", "at_least") for r in FRACTIONS},
            ours("guarded", "guarded RECL, r = 0.1", "tokens ↑"): partial(here, "0.1", "guarded", "guarded_at_least"),
            ours("loss", "loss with the longest context", unit): lambda row: over_seeds(
                {seed: model[unit][-1] for seed, model in models(row).items()}, DIGITS[unit]
            ),
            ours("limit", "sees at most", "tokens"): lambda row: cell(next(iter(models(row).values()))["limit"], 0),
            **{paper(f"paper_r{r}", f"RECL, r = {r}", "words ↑"): partial(of_paper, r) for r in FRACTIONS},
        },
    )
