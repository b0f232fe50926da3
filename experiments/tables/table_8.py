"""Table 8 and Figures 3 and 4: relative effective context length (RECL, appendix C).

Paper: for the hardest tenth of positions of WikiText-103, 900 words for Transformer-XL against 500 and 400 for QRNN
and LSTM of equal size, and 700 against 400, 300 and 128 in the ablation.
Runs: an LSTM and a QRNN with as many parameters; the other models are Table 6's. Group 1 has the standard model of
Table 1 where the profile trains it, as in the paper. `txl recl` for each of both groups.
Writes: the table with bootstrap intervals over blocks of positions, the differences, the gains (Figure 3) and the loss
by context (Figure 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_8
from experiments.report.sections import (
    DIGITS,
    Cell,
    Figure,
    Number,
    Section,
    Table,
    cell,
    copied_figures,
    label,
    ours,
    paper,
)
from experiments.tables.arms import Arm, in_precision_of_training, kept, training
from experiments.tables.comparisons import Comparison, comparisons_table
from experiments.tables.intervals import Interval
from experiments.tables.main_results import standard_run

TITLE = "Table 8, Figures 3 and 4: relative effective context length"
PAPER = (
    "At r = 0.1 the effective context of Transformer-XL is 900 words on WikiText-103, that of a QRNN and an LSTM of "
    "the same budget 500 and 400. In the ablation it is 700, with Shaw's encoding 400, without recurrence 300, and a "
    "Transformer with absolute positions sees its 128 tokens."
)
GROUPS: dict[int, dict[str, Arm]] = {
    1: {"Transformer-XL": Arm(), "QRNN": Arm(baseline="qrnn"), "LSTM": Arm(baseline="lstm")},
    2: {
        "Transformer-XL": Arm(),
        "Shaw encoding": Arm(True, "shaw"),
        "no recurrence": Arm(False),
        "Transformer": Arm(False, "al_rfou", "half"),
    },
}


def row_key(group: int, arm: Arm) -> str:
    """Return the key of an arm's row; an arm may be in both groups."""
    return f"group{group}-{arm.key}"


def jobs(setup: Setup) -> list[Job]:
    """Return the trainings of all models, and the RECL of both groups."""
    trained = {run.name: run for group in GROUPS for run in _runs(group, setup).values()}
    return [*trained.values(), *(_recl(group, setup) for group in GROUPS)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, and the figures of both groups."""
    results = {group: outcomes.result(_recl(group, setup), "recl.json") for group in GROUPS}
    one = results[1]
    return Section(
        id="table_8",
        title=TITLE,
        paper=PAPER,
        here=(
            f"Losses at {one['positions']['number']:,} positions of {one['corpus']['name']} ({one['split']}), in "
            f"{one['positions']['blocks']} blocks spread evenly over the text, each with exactly c tokens of context; "
            f"c grows from {one['contexts'][0]} to {one['contexts'][-1]} in steps of {one['step']} (the paper's are of "
            "100 words). One trained model of each kind: the first seed. Lengths can be compared within a group "
            f"only.{' Group 1 has the standard model of Table 1.' if standard_run(setup) else ''}"
        ),
        tables=(_table(results), comparisons_table("table_8", TITLE, "tokens", 0, differences(results))),
        figures=tuple(figure for group in GROUPS for figure in _figures(group, setup, outcomes)),
    )


def differences(results: dict[int, dict[str, Any]]) -> list[Comparison]:
    """Return how much longer the RECL of Transformer-XL is at r = 0.1 than that of each other model of its group.

    The models are scored at the same positions: the intervals are over the same resampled blocks. A length that may
    lie beyond the grid leaves its side of the interval open.
    """
    theirs = {(row.group, row.model): row.recl[0.1] for row in TABLE_8}
    found = []
    for group, result in results.items():
        lengths = {model["name"]: model["recl"]["0.1"] for model in result["models"]}
        longest, *others = lengths
        for name in others:
            low, high = lengths[longest]["longer_than"].get(name, (None, None))
            low = None if lengths[name]["high_at_least"] else low
            high = None if lengths[longest]["high_at_least"] else high
            longer = Interval(lengths[longest]["value"] - lengths[name]["value"], low, high)
            reference = max(1.0, lengths[name]["value"])
            found.append(
                Comparison(
                    f"recl_order/{row_key(group, GROUPS[group][name])}",
                    f"group {group}: {longest} − {name}, RECL at r = 0.1",
                    longer,
                    longer.times(100 / reference),
                    100 * (theirs[group, longest] / theirs[group, name] - 1),
                    step=result["step"],
                )
            )
    return found


def _runs(group: int, setup: Setup) -> dict[str, Job]:
    """First seed of each model of a group."""
    seed = setup.profile.seeds[0]
    runs = {name: training(arm, seed, setup) for name, arm in GROUPS[group].items() if kept([arm], setup)}
    standard = standard_run(setup)
    return {**runs, "Transformer-XL": standard} if group == 1 and standard else runs


def recl_job(name: str, arm: str, members: Mapping[str, Job], setup: Setup) -> Job:
    """Return the job that measures the RECL of a group of runs, by their names in the results."""
    checkpoints = ",".join(run.checkpoint for run in members.values())
    names = ",".join(f"'{member}'" for member in members)
    words = (f"checkpoints=[{checkpoints}]", f"names=[{names}]", *in_precision_of_training(setup.profile.recl, setup))
    return Job(name, "recl", words, arm, needs=tuple(run.name for run in members.values()))


def recl_cell(recl: Mapping[str, Any]) -> Cell:
    """Return a RECL of `recl.json` in tokens with its interval, open above the grid; empty where it has none."""
    if recl["value"] is None:
        return None
    high = None if recl["high_at_least"] else recl["high"]
    return Number(recl["value"], 0, low=recl["low"], high=high, at_least=recl["at_least"])


def _recl(group: int, setup: Setup) -> Job:
    return recl_job(f"recl-group{group}", f"group {group}", _runs(group, setup), setup)


def _figures(group: int, setup: Setup, outcomes: Outcomes) -> tuple[Figure, ...]:
    gains = f"Figure 3, group {group}: gain of a longer context, at the hardest tenth of positions."
    contexts = f"Figure 4, group {group}: loss by context, all positions, ± standard error."
    captions = {
        "gains_r0.1": (gains, f"Perplexity gain by context, group {group}"),
        "contexts": (contexts, f"Loss by context, group {group}"),
    }
    return copied_figures(outcomes, _recl(group, setup), captions)


def _table(results: dict[int, dict[str, Any]]) -> Table:
    """RECL by group, model and r, and the loss at the longest context."""
    unit, models = results[1]["unit"], [(n, model) for n, result in results.items() for model in result["models"]]
    theirs = {(row.group, row.model): row.recl for row in TABLE_8}
    fractions = sorted(results[1]["models"][0]["recl"])

    def here(r: str, row: tuple[int, dict[str, Any]]) -> Cell:
        return recl_cell(row[1]["recl"][r])

    def of_paper(r: str, row: tuple[int, dict[str, Any]]) -> Cell:
        return cell(theirs[row[0], row[1]["name"]].get(float(r)), 0)

    def loss(row: tuple[int, dict[str, Any]]) -> Cell:
        return Number(row[1][unit][-1], DIGITS[unit], row[1][f"{unit}_standard_error"][-1])

    return Table.filled(
        "table_8",
        TITLE,
        {row_key(n, GROUPS[n][model["name"]]): (n, model) for n, model in models},
        {
            label("arm"): lambda row: f"group {row[0]}: {row[1]['name']}",
            **{ours(f"r{r}", f"r = {r}", "tokens"): partial(here, r) for r in fractions},
            ours("loss", f"loss at {results[1]['contexts'][-1]} tokens", unit): loss,
            ours("limit", "sees at most", "tokens"): lambda row: cell(row[1]["limit"], 0),
            **{paper(f"paper_r{r}", f"r = {r}", "words"): partial(of_paper, r) for r in fractions},
        },
        notes=("Intervals are over resamples of the blocks of positions, as is the standard error of the loss.",),
    )
