"""Table 10: recurrence against longer segments that take the same GPU memory.

Paper: at equal GPU memory, perplexity 26.77 with recurrence and a backpropagation length of 128 against 27.98 without
recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: both arms without recurrence on longer segments, each twice: as many training tokens as with recurrence, and as
many steps; those with recurrence are Table 6's.
Writes: the table, with the columns of Table 6 and the cost of training, and the differences.
"""

from __future__ import annotations

from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_10, Table6Row
from experiments.report.sections import Section, Table, cell, label, ours, paper
from experiments.tables import table_6
from experiments.tables.arms import Arm, kept, memory_of_training, trainings
from experiments.tables.comparisons import compare, comparisons_table, percent_of_loss
from experiments.tables.length_sweep import Evaluations, evaluations, loss_columns, with_sweeps

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
PAPER = (
    "With the memory of a GPU held equal, segments can be 176 long without recurrence (172 with the half loss) instead "
    "of 128. Recurrence is still better: 26.77 against 27.98, and 28.33 against 28.83."
)
ROWS: dict[Arm, Table6Row] = {
    **{Arm(True, loss=row.loss): row for row in TABLE_10 if row.recurrence},
    **{Arm(False, loss=row.loss, longer="equal tokens"): row for row in TABLE_10 if not row.recurrence},
    **{Arm(False, loss=row.loss, longer="equal steps"): row for row in TABLE_10 if not row.recurrence},
}
EQUAL_TOKENS = Arm(False, longer="equal tokens")
EQUAL_STEPS = "A second line has as many steps as the rows with recurrence and so reads more tokens. "
CLAIM = "recurrence_beats_longer_segments"


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_sweeps(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the differences."""
    runs = _runs(setup)
    evaluated = evaluations(runs, setup, outcomes)
    unit = outcomes.unit
    found = []
    for arm in runs:
        recurrent = Arm(True, loss=arm.loss)
        if arm.longer and recurrent in runs:
            key = f"{CLAIM}/{arm.loss}" if arm == EQUAL_TOKENS else arm.key
            theirs = percent_of_loss(ROWS[arm].ppl_best, ROWS[recurrent].ppl_best)
            found.append(compare(key, recurrent, arm, "best", evaluated, outcomes, theirs))
    return Section(
        id="table_10",
        title=TITLE,
        paper=PAPER,
        here=(
            "Segments without recurrence are longer by the paper's factor; with recurrence the memory has "
            f"{memory_of_training(setup)} tokens. The claim is judged at equal tokens: longer segments, fewer steps. "
            f"{EQUAL_STEPS if any(arm.longer == 'equal steps' for arm in runs) else ''}"
            "The memory that a run takes is measured, not held equal as in the paper."
        ),
        tables=(_table(runs, evaluated, unit, outcomes), comparisons_table("table_10", TITLE, unit, 3, found)),
    )


def _table(runs: dict[Arm, list[Job]], evaluated: Evaluations, unit: str, outcomes: Outcomes) -> Table:
    metrics = {arm: outcomes.metrics(runs[arm][0]) for arm in evaluated}

    def title(arm: Arm) -> str:
        words = f"{'recurrence' if arm.recurrence else 'no recurrence'}, {arm.loss} loss"
        return f"{words}, {arm.longer}" if arm.longer else words

    def segment(arm: Arm) -> int:
        return composed(runs[arm][0].overrides).data.segment_len

    return Table.filled(
        "table_10",
        TITLE,
        {arm.key: arm for arm in runs if arm in evaluated},
        {
            label("arm"): title,
            ours("segment", "segment", "tokens"): lambda arm: cell(segment(arm), 0),
            ours("trained", "training", "tokens"): lambda arm: cell(metrics[arm]["tokens"], 0),
            ours("steps", "training", "steps"): lambda arm: cell(metrics[arm]["steps"], 0),
            ours("seconds", "training", "s"): lambda arm: cell(metrics[arm]["seconds"], 0),
            ours("peak", "training, peak memory", "MB"): lambda arm: cell(metrics[arm]["peak_memory_bytes"] / 2**20, 0),
            **loss_columns(evaluated, unit),
            paper("paper_segment", "segment", "tokens"): lambda arm: cell(ROWS[arm].segment_len, 0),
            paper("paper_init", "init", "ppl"): lambda arm: cell(ROWS[arm].ppl_init, 2),
            paper("paper_best", "best", "ppl"): lambda arm: cell(ROWS[arm].ppl_best, 2),
            paper("paper_length", "attention length", "tokens"): lambda arm: cell(ROWS[arm].attention_length, 0),
        },
        notes=("Tokens, steps, seconds and peak memory of training are the first seed's.",),
    )


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    return {
        arm: table_6.runs(arm, setup) if arm.recurrence else trainings(arm, setup, compared=arm.loss == "full")
        for arm in kept(ROWS, setup)
    }
