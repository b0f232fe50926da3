"""Table 10: recurrence against longer segments that take the same memory.

The paper found, with the memory of a GPU held equal, 26.77 with recurrence and a backpropagation length of 128 against
27.98 without recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: the two arms without recurrence on longer segments; those with recurrence are Table 6's.
Writes: the table, in Table 6's terms.
"""

from __future__ import annotations

from typing import Any

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_10
from experiments.report.cells import Section, column, number, text, unit_of
from experiments.tables import table_6
from experiments.tables.arms import Arm, trainings

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
PAPER = (
    "With the memory of a GPU held equal, segments can be 176 long without recurrence (172 with the half loss) instead "
    "of 128. Recurrence is still better: 26.77 against 27.98, and 28.33 against 28.83."
)
ARMS = [(recurrence, loss) for recurrence in (True, False) for loss in ("full", "half")]


def runs(recurrence: bool, loss: str, setup: Setup) -> list[Job]:
    """The trainings of a row."""
    if recurrence:
        return table_6.runs(Arm(True, "relative", loss), setup)
    return trainings(Arm(False, "relative", loss, longer=True), setup, one_seed=loss == "half")


def jobs(setup: Setup) -> list[Job]:
    """Every run and its evaluation."""
    found = [run for arm in ARMS for run in runs(*arm, setup)]
    return [job for run in found for job in (run, table_6.sweep(run, setup))]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table."""
    unit = unit_of(outcomes.metrics(runs(True, "full", setup)[0]))
    paper = {(row.recurrence, row.loss): row for row in TABLE_10}
    rows: list[dict[str, Any]] = []
    for arm in ARMS:
        found = runs(*arm, setup)
        by_seed = {run.seed: table_6.measured(run, setup, outcomes) for run in found}
        theirs = paper[arm]
        rows.append(
            {
                "arm": text(f"{'recurrence' if arm[0] else 'no recurrence'}, {arm[1]} loss"),
                "segment": number(composed(found[0].overrides).data.segment_len, 0),
                **table_6.cells(by_seed, unit),
                "tokens": number(next(iter(by_seed.values())).tokens, 0),
                "paper_segment": number(theirs.segment_len, 0),
                "paper_init": number(theirs.ppl_init, 2),
                "paper_best": number(theirs.ppl_best, 2),
                "paper_length": number(theirs.attention_length, 0),
            }
        )
    return {
        "id": "table_10",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            "The longer segments are as many times longer as the paper's; batch and steps are those of the other rows, "
            "so that they see more tokens in training. The memory that was really used was not held equal here."
        ),
        "tables": [
            {
                "id": "table_10",
                "caption": TITLE,
                "columns": [
                    column("arm", "", "label"),
                    column("segment", "segment", "ours", "tokens"),
                    column("init", "init", "ours", unit),
                    column("best", "best", "ours", unit),
                    column("length", "attention length", "ours", "tokens"),
                    column("tokens", "scored", "ours", "tokens"),
                    column("paper_segment", "segment", "paper", "tokens"),
                    column("paper_init", "init", "paper", "ppl"),
                    column("paper_best", "best", "paper", "ppl"),
                    column("paper_length", "attention length", "paper", "tokens"),
                ],
                "rows": rows,
            }
        ],
    }
