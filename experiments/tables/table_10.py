"""Table 10: recurrence against longer segments that take the same GPU memory.

Paper: at equal GPU memory, perplexity 26.77 with recurrence and a backpropagation length of 128 against 27.98 without
recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: both arms without recurrence on longer segments; those with recurrence are Table 6's.
Writes: the table, with the columns of Table 6.
"""

from __future__ import annotations

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_10
from experiments.report.cells import Text, number
from experiments.report.sections import Row, Section, Table, label, ours, paper
from experiments.tables import table_6
from experiments.tables.arms import Arm, trainings
from experiments.tables.shared.length_sweep import cells, columns, sweeps_by_seed, with_sweeps

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
PAPER = (
    "With the memory of a GPU held equal, segments can be 176 long without recurrence (172 with the half loss) instead "
    "of 128. Recurrence is still better: 26.77 against 27.98, and 28.33 against 28.83."
)
ROWS = {Arm(row.recurrence, "relative", row.loss, longer=not row.recurrence): row for row in TABLE_10}


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return [job for arm in ROWS for job in with_sweeps(_runs(arm, setup), setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table."""
    unit = outcomes.training(_runs(Arm(), setup)[0]).unit
    rows: dict[str, Row] = {}
    for arm, row in ROWS.items():
        runs = _runs(arm, setup)
        sweeps = sweeps_by_seed(runs, setup, outcomes)
        rows[arm.key] = {
            "arm": Text(f"{'recurrence' if arm.recurrence else 'no recurrence'}, {arm.loss} loss"),
            "segment": number(composed(runs[0].overrides).data.segment_len, 0),
            **cells(sweeps, unit),
            "tokens": number(next(iter(sweeps.values())).tokens, 0),
            "paper_segment": number(row.segment_len, 0),
            "paper_init": number(row.ppl_init, 2),
            "paper_best": number(row.ppl_best, 2),
            "paper_length": number(row.attention_length, 0),
        }
    table = Table(
        id="table_10",
        caption=TITLE,
        columns=(
            label("arm"),
            ours("segment", "segment", "tokens"),
            *columns(unit),
            ours("tokens", "scored", "tokens"),
            paper("paper_segment", "segment", "tokens"),
            paper("paper_init", "init", "ppl"),
            paper("paper_best", "best", "ppl"),
            paper("paper_length", "attention length", "tokens"),
        ),
        rows=rows,
    )
    return Section(
        id="table_10",
        title=TITLE,
        paper=PAPER,
        here=(
            "Segments without recurrence are longer by the paper's factor. Batch and steps equal those of the other "
            "rows, so these runs see more tokens in training. GPU memory was not measured or held equal."
        ),
        tables=(table,),
    )


def _runs(arm: Arm, setup: Setup) -> list[Job]:
    if arm.recurrence:
        return table_6.runs(arm, setup)
    return trainings(arm, setup, one_seed=arm.loss == "half")
