"""Tables 1 to 5: the main results.

Paper: Transformer-XL is better than equally large recurrent and vanilla Transformer models on five corpora.
Runs: arms from Tables 6 and 8 side by side. `txl train experiment=paper/NAME` trains a published model.
Writes: a table with our arms beside the paper's models.
"""

from __future__ import annotations

from experiments.arms import OFF, ON, Arm
from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_1, TABLE_2
from experiments.sections import Cell, Column, Section, Table, cell
from experiments.tables.evaluations import (
    WINDOWS,
    Runs,
    loss_cell,
    read_evaluations,
    runs_of,
    with_evaluations,
)

TITLE = "Tables 1 to 5: main results"
ARMS = {
    ON: "Transformer-XL",
    OFF: "Transformer without recurrence",
    Arm(recurrence=False, encoding="al_rfou", loss="half"): "Al-Rfou",
    Arm(baseline="qrnn"): "QRNN",
    Arm(baseline="lstm"): "LSTM",
}


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(runs_of(ARMS, setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table with our arms."""
    runs = runs_of(ARMS, setup)
    return Section(
        id="main_results",
        title=TITLE,
        here=(
            "Test loss of the weights with the best validation loss, at training's lengths; "
            f"without recurrence in {WINDOWS}. The paper's numbers are of the same kind of model "
            "on another corpus: compare their order only."
        ),
        tables=[_table(runs, outcomes)],
    )


def _table(runs: Runs, outcomes: Outcomes) -> Table:
    evaluated = read_evaluations(runs, outcomes)
    unit = outcomes.unit
    # The table whose corpus has the same kind of tokens.
    corpus, unit_of_paper, nearest = "enwik8", "bpb", TABLE_2
    if unit == "ppl":
        corpus, unit_of_paper, nearest = "WikiText-103", "ppl", TABLE_1
    columns = [
        Column("label", "arm"),
        Column("ours", "parameters", "parameters", "million"),
        Column("ours", "loss", "test loss", unit),
        Column("paper", "paper_parameters", f"parameters, {corpus}", "million"),
        Column("paper", "paper", f"test loss, {corpus}", unit_of_paper),
    ]
    rows = {}
    for arm, of_arm in runs.items():
        cells: dict[str, Cell] = {"arm": ARMS[arm]}
        if ARMS[arm] in nearest:
            parameters, loss = nearest[ARMS[arm]]
            cells["paper_parameters"] = cell(parameters, 0)
            cells["paper"] = cell(loss, 2)
        if arm in evaluated:
            metrics = outcomes.result(of_arm[0], "metrics.json")
            cells["parameters"] = cell(metrics["parameters"] / 1e6, 2)
            cells["loss"] = loss_cell(evaluated[arm], unit)
        rows[arm.key] = cells
    return Table("main_results", "Main results of this run", columns, rows)
