"""Table 10: recurrence against longer segments that take the same memory.

Paper: at equal GPU memory, perplexity 26.77 with recurrence and backpropagation length 128 against 27.98 without
recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: without recurrence, both losses, on the longest segments that take no more memory in training than recurrence
(the paper's 176 in the larger profiles), with as many training tokens. Runs with recurrence are Table 6's.
Writes: the table, with Table 6's columns and the segment length, and the difference.
"""

from __future__ import annotations

from experiments.arms import ON, Arm
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_10
from experiments.sections import Column, Section, Table, cell
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import (
    PAPER_COLUMNS,
    loss_cells,
    loss_columns,
    paper_cells,
    read_evaluations,
    runs_of,
    with_evaluations,
)

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
ROWS = {
    Arm(
        row.recurrence,
        loss=row.loss,
        longer=not row.recurrence,
    ): row
    for row in TABLE_10
}
LONGER = Arm(recurrence=False, longer=True)


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(runs_of(ROWS, setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the difference."""
    runs = runs_of(ROWS, setup)
    evaluated = read_evaluations(runs, outcomes)
    in_paper = percent_of_loss(ROWS[LONGER].ppl_best, ROWS[ON].ppl_best)
    key = "recurrence_beats_longer_segments/full"
    comparisons = Comparisons(evaluated, outcomes)
    rows = {}
    for arm, of_arm in runs.items():
        cells = loss_cells(arm, evaluated, outcomes.unit)
        cells.update(paper_cells(ROWS[arm]))
        cells["paper_segment"] = cell(ROWS[arm].segment_len, 0)
        cells["segment"] = cell(composed(of_arm[0].overrides).data.segment_len, 0)
        rows[arm.key] = cells
    columns = [
        *loss_columns(outcomes.unit),
        Column("ours", "segment", "segment", "tokens"),
        *PAPER_COLUMNS,
        Column("paper", "paper_segment", "segment", "tokens"),
    ]
    mem_len = setup.config.memory.mem_len
    return Section(
        id="table_10",
        title=TITLE,
        here=(
            f"With recurrence the memory has {mem_len} tokens. Segments without have "
            f"{setup.profile.longer_segment}, as many as take no more memory with the profile's sizes. "
            "They read as many tokens in fewer steps."
        ),
        tables=[Table("table_10", TITLE, columns, rows)],
        differences=[comparisons.losses(key, ON, LONGER, "best", in_paper)],
    )
