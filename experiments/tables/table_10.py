"""Table 10: recurrence against longer segments that take the same memory.

Paper: at equal GPU memory, perplexity 26.77 with recurrence and a backpropagation length of 128 against 27.98 without
recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: without recurrence, both losses, on the longest segments that take no more memory of training than recurrence
(`longest_segment`; the paper's 176 in the larger profiles), with as many training tokens. Those with recurrence are
Table 6's.
Writes: the table, with the columns of Table 6 and the cost of training, and the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from experiments.arms import ON, Arm, memory_of_training, saved_bytes
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_10
from experiments.sections import Cell, Column, Section, Table, cell, label, ours, paper
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import Evaluations, Runs, evaluations, loss_columns, runs_of, with_evaluations

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
ROWS = {Arm(row.recurrence, loss=row.loss, longer=not row.recurrence): row for row in TABLE_10}
LONGER = Arm(False, longer=True)


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(runs_of(ROWS, setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the difference."""
    runs = runs_of(ROWS, setup)
    evaluated = evaluations(runs, setup, outcomes)
    theirs = percent_of_loss(ROWS[LONGER].ppl_best, ROWS[ON].ppl_best)
    key = "recurrence_beats_longer_segments/full"
    longest = (
        "of the paper's length"
        if setup.profile.longer_segment
        else "the longest, of a multiple of 8 tokens, for which autograd saves no more than with recurrence for the "
        "backward pass of one segment: all tensors but the weights, in float32"
    )
    return Section(
        id="table_10",
        title=TITLE,
        here=(
            f"With recurrence the memory has {memory_of_training(setup)} tokens. Segments without are {longest}. They "
            "read as many tokens in fewer steps."
        ),
        tables=_tables(runs, evaluated, setup, outcomes),
        differences=(Comparisons(evaluated, outcomes).losses(key, ON, LONGER, "best", theirs),),
    )


def _tables(runs: Runs, evaluated: Evaluations, setup: Setup, outcomes: Outcomes) -> tuple[Table, Table]:
    """Return the losses, and what training takes."""
    configs = {arm: composed(runs[arm][0].overrides) for arm in runs}
    on_gpu = setup.profile.accelerator == "gpu"  # a CPU's peak is of the whole process with its libraries

    def trained(arm: Arm, name: str) -> Cell:
        return cell(outcomes.first(runs[arm])[name], 0)

    def megabytes(arm: Arm) -> float:
        return (outcomes.first(runs[arm])["peak_memory_bytes"] if on_gpu else saved_bytes(configs[arm])) / 2**20

    rows = {arm.key: arm for arm in runs}
    losses = loss_columns(evaluated, outcomes.unit, ROWS)
    costs: dict[Column, Callable[[Arm], Cell]] = {
        label("arm"): lambda arm: arm.title,
        ours("segment", "segment", "tokens"): lambda arm: cell(configs[arm].data.segment_len, 0),
        ours("trained", "training", "tokens"): partial(trained, name="tokens"),
        ours("steps", "training", "steps"): partial(trained, name="steps"),
        ours("seconds", "training", "s"): partial(trained, name="seconds"),
        ours("memory", "training, peak memory" if on_gpu else "saved for the backward pass", "MB"): lambda arm: cell(
            megabytes(arm), 1
        ),
        paper("paper_segment", "segment", "tokens"): lambda arm: cell(ROWS[arm].segment_len, 0),
    }
    return (
        Table.filled("table_10", TITLE, rows, losses),
        Table.filled("table_10_costs", "Length of the segments, and what training takes, of one run", rows, costs),
    )
