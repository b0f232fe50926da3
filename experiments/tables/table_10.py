"""Table 10: recurrence against longer segments that take the same memory.

Paper: at equal GPU memory, perplexity 26.77 with recurrence and a backpropagation length of 128 against 27.98 without
recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: without recurrence the longest segments that take no more memory of training than recurrence (`longest_segment`);
and segments longer by the paper's factor with both losses, each with as many training tokens as with recurrence, and
with as many steps. Those with recurrence are Table 6's.
Writes: the table, with the columns of Table 6 and the cost of training, and the differences.
"""

from __future__ import annotations

from experiments.engine.jobs import Job, Outcomes, Pending, composed
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_10, Table6Row
from experiments.report.sections import Section, Table, cell, label, ours, paper
from experiments.tables import table_6
from experiments.tables.arms import Arm, kept, memory_of_training, trainings
from experiments.tables.comparisons import compare, comparisons_table, percent_of_loss
from experiments.tables.length_sweep import ON, Evaluations, evaluations, loss_columns, with_sweeps
from experiments.tables.memory import saved_bytes

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
PAPER = (
    "With the memory of a GPU held equal, segments can be 176 long without recurrence (172 with the half loss) instead "
    "of 128. Recurrence is still better: 26.77 against 27.98, and 28.33 against 28.83."
)
EQUAL_MEMORY, EQUAL_TOKENS = Arm(False, longer="equal memory"), Arm(False, longer="equal tokens")
ROWS: dict[Arm, Table6Row] = {
    **{Arm(True, loss=row.loss): row for row in TABLE_10 if row.recurrence},
    EQUAL_MEMORY: next(row for row in TABLE_10 if (row.recurrence, row.loss) == (False, "full")),
    **{Arm(False, loss=row.loss, longer="equal tokens"): row for row in TABLE_10 if not row.recurrence},
    **{Arm(False, loss=row.loss, longer="equal steps"): row for row in TABLE_10 if not row.recurrence},
}
WORDS = {
    "equal memory": "segments that take as much memory, as many tokens",
    "equal tokens": "segments longer by the paper’s factor, as many tokens",
    "equal steps": "segments longer by the paper’s factor, as many steps",
}
CLAIM = "recurrence_beats_longer_segments"


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_sweeps(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the differences."""
    runs = _runs(setup)
    evaluated = evaluations(runs, setup, outcomes)
    if not any(arm.recurrence for arm in evaluated):
        raise Pending(runs[ON][0].name)
    unit, found = outcomes.unit, []
    judged = EQUAL_MEMORY if EQUAL_MEMORY in runs else EQUAL_TOKENS
    for arm in runs:
        recurrent = Arm(True, loss=arm.loss)
        if arm.longer and recurrent in runs:
            key = f"{CLAIM}/{arm.loss}" if arm == judged else f"beside/{arm.key}"
            theirs = percent_of_loss(ROWS[arm].ppl_best, ROWS[recurrent].ppl_best)
            found.append(compare(key, recurrent, arm, "best", evaluated, outcomes, theirs))
    longest = (
        "The claim is judged on the longest segments, of a multiple of 8 tokens, for which autograd saves no more than "
        "with recurrence for the backward pass of one segment: all tensors but the weights, in float32. They read as "
        "many tokens in fewer steps. "
        if judged == EQUAL_MEMORY
        else "The claim is judged at equal tokens: longer segments, fewer steps. "
    )
    return Section(
        id="table_10",
        title=TITLE,
        paper=PAPER,
        here=(
            f"With recurrence the memory has {memory_of_training(setup)} tokens. {longest}The paper's factor was "
            "measured on a GPU with the paper's model and need not give equal memory here."
        ),
        tables=(_table(runs, evaluated, setup, outcomes), comparisons_table("table_10", TITLE, unit, 3, found)),
    )


def _table(runs: dict[Arm, list[Job]], evaluated: Evaluations, setup: Setup, outcomes: Outcomes) -> Table:
    metrics = {arm: outcomes.metrics(next(filter(outcomes.has, runs[arm]))) for arm in evaluated}

    def title(arm: Arm) -> str:
        words = f"{'recurrence' if arm.recurrence else 'no recurrence'}, {arm.loss} loss"
        return f"{words}, {WORDS[arm.longer]}" if arm.longer else words

    def megabytes(arm: Arm) -> float:
        return (metrics[arm]["peak_memory_bytes"] if on_gpu else saved_bytes(configs[arm])) / 2**20

    configs = {arm: composed(runs[arm][0].overrides) for arm in evaluated}
    on_gpu = setup.profile.accelerator == "gpu"  # a CPU's peak is of the whole process with its libraries

    return Table.filled(
        "table_10",
        TITLE,
        {arm.key: arm for arm in evaluated},
        {
            label("arm"): title,
            ours("segment", "segment", "tokens"): lambda arm: cell(configs[arm].data.segment_len, 0),
            ours("trained", "training", "tokens"): lambda arm: cell(metrics[arm]["tokens"], 0),
            ours("steps", "training", "steps"): lambda arm: cell(metrics[arm]["steps"], 0),
            ours("seconds", "training", "s"): lambda arm: cell(metrics[arm]["seconds"], 0),
            ours("memory", "training, peak memory" if on_gpu else "saved for the backward pass", "MB"): lambda arm: (
                cell(megabytes(arm), 1)
            ),
            **loss_columns(evaluated, outcomes.unit),
            paper("paper_segment", "segment", "tokens"): lambda arm: cell(ROWS[arm].segment_len, 0),
            paper("paper_init", "init", "ppl"): lambda arm: cell(ROWS[arm].ppl_init, 2),
            paper("paper_best", "best", "ppl"): lambda arm: cell(ROWS[arm].ppl_best, 2),
            paper("paper_length", "attention length", "tokens"): lambda arm: cell(ROWS[arm].attention_length, 0),
        },
        notes=("Tokens, steps, seconds and memory of training are those of one run.",),
    )


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    return {
        arm: table_6.runs(arm, setup) if arm.recurrence else trainings(arm, setup, compared=arm.loss == "full")
        for arm in kept(ROWS, setup)
    }
