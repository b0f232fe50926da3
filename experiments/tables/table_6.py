"""Table 6: recurrence, position encoding and loss; each row is one arm in the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row but the last three and, for the claim about the half loss, the absolute encodings with the full loss
and with a random half of the positions; each is evaluated on validation at several attention lengths, and on test at
training's length ("init") and at the length that validation chose ("best").
Writes: the table, the differences, and loss by attention length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from experiments.arms import OFF, ON, Arm
from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_6
from experiments.sections import Difference, Figure, Section, Table, copied_figures
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import (
    PAPER_COLUMNS,
    WINDOWS,
    At,
    Evaluations,
    Runs,
    evaluation_job,
    loss_cells,
    loss_columns,
    paper_cells,
    read_evaluations,
    runs_of,
    with_evaluations,
)

TITLE = "Table 6: recurrence, encoding, loss"
ROWS = {
    Arm(
        row.recurrence,
        row.encoding,
        row.loss,
    ): row
    for row in TABLE_6
}
SHAW = Arm(encoding="shaw")
HALF = Arm(recurrence=False, loss="half")
SHAW_HALF = replace(HALF, encoding="shaw")
ABSOLUTE = ("absolute", "al_rfou")
NO_LONGER = (
    "Without recurrence no run gained from longer windows on validation, so this would be the "
    "comparison at training’s lengths again."
)
NOTES = (
    "Best attention length: the length with the lowest validation loss.",
    "The random half has as many losses as the last half, drawn for each step, but some have "
    "little context.",
)
Pair: TypeAlias = tuple[str, Arm, Arm, At]
"""Key of a difference, the arm that is lower if the claim is right, the other one, and the attention length."""


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, the differences and the figure."""
    runs = _runs(setup)
    evaluated = read_evaluations(runs, outcomes)
    return Section(
        id="table_6",
        title=TITLE,
        here=(
            "At training's lengths a token with recurrence sees the memory and its segment so far. "
            "Best length: the attention length chosen on validation; every token then sees as "
            f"many, itself included. Rows without recurrence are scored in {WINDOWS}, at "
            "training's length too. A difference rests on the tokens and seeds that both of its "
            "rows have. The paper's numbers are of validation."
        ),
        tables=[_table(evaluated, outcomes.unit, runs)],
        figures=_figures(runs, setup, outcomes),
        differences=differences(evaluated, outcomes, runs),
    )


def _runs(setup: Setup) -> Runs:
    arms = list(ROWS)
    for encoding in ABSOLUTE:
        for loss in ("full", "random_half"):
            arms.append(
                Arm(
                    recurrence=False,
                    encoding=encoding,
                    loss=loss,
                )
            )
    return runs_of(arms, setup)


def differences(
    evaluated: Evaluations, outcomes: Outcomes, planned: Iterable[Arm]
) -> list[Difference]:
    """Return the differences for Table 6's claims between planned arms; empty while an arm has no result."""
    planned = set(planned)
    comparisons = Comparisons(evaluated, outcomes)
    rows = []
    for key, better, worse, at in _pairs():
        if better in planned and worse in planned:
            in_paper = _in_paper(better, worse, at)
            rows.append(comparisons.losses(key, better, worse, at, in_paper))
    if OFF in evaluated and not any(run.chose_longer for run in evaluated[OFF]):
        rows[1] = replace(rows[1], untested=NO_LONGER)
    key = "only_ours_gains_from_longer_attention"
    for name, arm in (("ours", ON), ("ours_no_recurrence", OFF)):
        in_paper = _gain_in_paper(arm)
        rows.append(comparisons.gain(f"{key}/{name}", arm, paper=in_paper))
    for arm in (SHAW, SHAW_HALF):  # absolute encodings cannot attend farther
        if arm in planned:
            more = _gain_in_paper(ON) - _gain_in_paper(arm)
            rows.append(comparisons.gain(f"{key}/{arm.key}", ON, arm, more))
    return rows


def _pairs() -> list[Pair]:
    """Return the pairs of arms that the claims compare."""
    key = "our_encoding_is_better"
    pairs: list[Pair] = [
        ("recurrence_helps/init", ON, OFF, "init"),
        ("recurrence_helps_at_the_best_lengths/best", ON, OFF, "best"),
        (f"{key}/shaw_recurrence", ON, SHAW, "best"),
        (f"{key}/shaw", OFF, replace(SHAW, recurrence=False), "best"),
        (f"{key}/shaw_half", HALF, SHAW_HALF, "best"),
    ]
    rescued: list[Pair] = []
    for encoding in ABSOLUTE:
        last_half = replace(HALF, encoding=encoding)
        pairs.append((f"{key}/{encoding}_half", HALF, last_half, "best"))
        rescue = f"half_loss_rescues_absolute_encodings/{encoding}"
        full = replace(last_half, loss="full")
        random_half = replace(last_half, loss="random_half")
        rescued.append((rescue, last_half, full, "init"))
        rescued.append((f"{rescue}_random_half", last_half, random_half, "init"))
    return [*pairs, *rescued]


def _in_paper(better: Arm, worse: Arm, at: At) -> float | None:
    """Return the difference between two rows in the paper's table in percent of the worse loss."""
    if better not in ROWS or worse not in ROWS:
        return None
    if at == "init":
        return percent_of_loss(ROWS[worse].ppl_init, ROWS[better].ppl_init)
    return percent_of_loss(ROWS[worse].ppl_best, ROWS[better].ppl_best)


def _gain_in_paper(arm: Arm) -> float:
    return percent_of_loss(ROWS[arm].ppl_init, ROWS[arm].ppl_best)


def _table(evaluated: Evaluations, unit: str, planned: Iterable[Arm]) -> Table:
    rows = {}
    for arm in planned:
        cells = loss_cells(arm, evaluated, unit)
        if arm in ROWS:
            cells.update(paper_cells(ROWS[arm]))
        rows[arm.key] = cells
    columns = [*loss_columns(unit), *PAPER_COLUMNS]
    return Table("table_6", TITLE, columns, rows, NOTES)


def _figures(runs: Runs, setup: Setup, outcomes: Outcomes) -> list[Figure]:
    """Return the first seed's curves with recurrence, as its evaluation drew them."""
    job = evaluation_job(ON, runs[ON][0], setup)
    caption = "Loss by attention length at evaluation: recurrence, relative, full loss; first seed."
    return copied_figures(outcomes, job, {"attention_lengths": caption})
