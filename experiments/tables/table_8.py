"""Table 8 and Figures 3 and 4: how far each model looks (relative effective context length, appendix C).

The paper found, for the hardest tenth of positions of WikiText-103, 900 words for Transformer-XL against 500 and 400
for QRNN and LSTM of equal size, and 700 against 400, 300 and 128 in its ablation.
Runs: an LSTM and a QRNN of as many parameters; the other models are Table 6's. `txl recl` for each of the two groups.
Writes: the table with bootstrap intervals over positions, the gains (Figure 3) and the loss by context (Figure 4).
"""

from __future__ import annotations

from typing import Any

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_8
from experiments.report.cells import DIGITS, Cell, Section, column, number, text
from experiments.tables.arms import Arm, trainings

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
        "Transformer": Arm(False, "absolute", "half"),
    },
}


def runs(group: int, setup: Setup) -> dict[str, Job]:
    """The training behind each model of a group: the first seed."""
    return {name: trainings(arm, setup, one_seed=True)[0] for name, arm in GROUPS[group].items()}


def scored(group: int, setup: Setup) -> Job:
    """RECL of a group."""
    members = runs(group, setup)
    checkpoints = ",".join(run.checkpoint for run in members.values())
    names = ",".join(f"'{name}'" for name in members)
    words = (f"checkpoints=[{checkpoints}]", f"names=[{names}]", *setup.profile.recl)
    needs = tuple(run.name for run in members.values())
    return Job(f"recl-group{group}", "recl", words, f"group {group}", needs=needs)


def jobs(setup: Setup) -> list[Job]:
    """The baselines, and the scoring of both groups."""
    trained = {run.name: run for group in GROUPS for run in runs(group, setup).values()}
    return [*trained.values(), *(scored(group, setup) for group in GROUPS)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table, and the figures of both groups."""
    results = {group: outcomes.result(scored(group, setup), "recl.json") for group in GROUPS}
    one = results[1]
    figures = []
    for group in GROUPS:
        job = scored(group, setup)
        caption = f"Figure 3, group {group}: what a longer context gains, at the hardest tenth of positions."
        figures.append(outcomes.figure(job, "gains_r0.1", caption, f"Perplexity gain by context, group {group}"))
        caption = f"Figure 4, group {group}: loss by context, all positions, ± standard error."
        figures.append(outcomes.figure(job, "contexts", caption, f"Loss by context, group {group}"))
    return {
        "id": "table_8",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{one['positions']['number']:,} evenly spaced positions of {one['corpus']['name']} ({one['split']}), "
            f"exactly c tokens of context from {one['contexts'][0]} to {one['contexts'][-1]} in steps of {one['step']} "
            "(the paper's steps are of 100 words); the first seed of every model. A group's lengths cannot be compared "
            "with another's."
        ),
        "tables": [table(results)],
        "figures": figures,
    }


def table(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """RECL by group, model and r, and the loss at the longest context."""
    unit = results[1]["unit"]
    fractions = sorted(results[1]["models"][0]["recl"])
    columns = [column("arm", "", "label")]
    columns += [column(f"r{r}", f"r = {r}", "ours", "tokens") for r in fractions]
    columns += [column("loss", f"loss at {results[1]['contexts'][-1]} tokens", "ours", unit)]
    columns += [column("limit", "sees at most", "ours", "tokens")]
    columns += [column(f"paper_r{r}", f"r = {r}", "paper", "words") for r in fractions]
    paper = {(row.group, row.model): row for row in TABLE_8}
    rows = []
    for group, result in results.items():
        for model in result["models"]:
            row: dict[str, Any] = {"arm": text(f"group {group}: {model['name']}")}
            row |= {f"r{r}": length(model["recl"][r]) for r in fractions}
            error = model[f"{unit}_standard_error"][-1]
            row["loss"] = number(model[unit][-1], DIGITS[unit], standard_error=error)
            row["limit"] = number(model["limit"], 0)
            theirs = paper[(group, model["name"])].recl
            row |= {f"paper_r{r}": number(theirs.get(float(r)), 0) for r in fractions}
            rows.append(row)
    return {
        "id": "table_8",
        "caption": TITLE,
        "columns": columns,
        "rows": rows,
        "notes": [
            "Intervals are over resamples of the positions, the error of the loss over positions. ≥: still gaining "
            "where the grid of contexts ends.",
        ],
    }


def length(recl: dict[str, Any]) -> Cell:
    """A RECL with its interval."""
    interval = {} if recl.get("low") is None else {"low": recl["low"], "high": recl["high"]}
    return number(recl["value"], 0, at_least=recl["at_least"], **interval)
