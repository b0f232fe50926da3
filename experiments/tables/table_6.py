"""Table 6: recurrence, position encoding and loss; each row is one arm of the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row of the table and, for the claim about the half loss, the absolute encodings with the full loss and with
a half of the positions drawn at random; each is evaluated on validation at a grid of attention lengths, and on test at
training's length ("init") and at the length that validation chose ("best"). For the table's last rows, the standard
model of Table 1 where the profile trains it.
Writes: the tables, the differences, and loss by attention length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from experiments.arms import ENCODINGS, OFF, ON, Arm
from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_6, TABLE_6_STANDARD
from experiments.sections import DIGITS, Difference, Figure, Section, Table, cell, label, ours, paper, unit_words
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import (
    WINDOWS,
    At,
    Evaluations,
    Runs,
    evaluation_job,
    evaluations,
    loss_columns,
    runs_of,
    trained_words,
    with_evaluations,
)
from experiments.tables.main_results import standard_run
from txl_lightning.reporting.canvas import line_figure

TITLE = "Table 6: recurrence, encoding, loss"
ROWS = {Arm(row.recurrence, row.encoding, row.loss): row for row in TABLE_6}
SHAW, ABSOLUTE = Arm(True, "shaw"), ("absolute", "al_rfou")
LOSSES = {encoding: [Arm(False, encoding, loss) for loss in ("full", "random_half", "half")] for encoding in ABSOLUTE}
NO_LONGER = (
    "Without recurrence no run gained from longer windows on validation, so this would be the comparison at training’s "
    "lengths again."
)


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    ablation, standard = with_evaluations(_runs(setup), setup), standard_run(setup)
    return [*ablation, standard, _standard_evaluation(standard, setup)] if standard else ablation


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the tables, the differences and the figure."""
    runs = _runs(setup)
    found, unit = evaluations(runs, setup, outcomes), outcomes.unit
    tables = [_table(found, unit, runs), _losses_table(found, unit, runs)]
    if (standard := standard_run(setup)) and outcomes.has(_standard_evaluation(standard, setup)):
        tables.append(_standard_table(standard, unit, setup, outcomes))
    return Section(
        id="table_6",
        title=TITLE,
        here=(
            f"{trained_words(runs, outcomes)} At training's lengths a token with recurrence sees the memory and its "
            "segment so far. Best length: the attention length chosen on validation; every token then sees as many, "
            "itself included. Rows without "
            f"recurrence are scored in {WINDOWS}, at training's length too. A difference rests on the tokens and seeds "
            "that both of its rows have. The paper's numbers are of validation."
        ),
        tables=tuple(tables),
        figures=_lengths_figure(found, outcomes),
        differences=tuple(differences(found, outcomes, runs)),
    )


def differences(found: Evaluations, outcomes: Outcomes, planned: Collection[Arm]) -> list[Difference]:
    """Return the differences of the claims that Table 6 tells, of planned arms; empty while one has no result."""
    half = {name: Arm(False, name, "half") for name in ENCODINGS}
    others = [name for name in ENCODINGS if name != "relative"]
    pairs: list[tuple[str, Arm, Arm, At]] = [  # key, the arm that is lower if the claim is right, the other
        ("recurrence_helps/init", ON, OFF, "init"),
        ("recurrence_helps_at_the_best_lengths/best", ON, OFF, "best"),
        ("our_encoding_is_better/shaw_recurrence", ON, SHAW, "best"),
        ("our_encoding_is_better/shaw", OFF, replace(SHAW, recurrence=False), "best"),
        *((f"our_encoding_is_better/{name}_half", half["relative"], half[name], "best") for name in others),
    ]
    for encoding, (full, random_half, last_half) in LOSSES.items():
        claim = f"half_loss_rescues_absolute_encodings/{encoding}"
        pairs += [(claim, last_half, full, "init"), (f"{claim}_random_half", last_half, random_half, "init")]
    comparisons = Comparisons(found, outcomes)
    rows = [comparisons.losses(*pair, _in_paper(*pair[1:])) for pair in pairs if {pair[1], pair[2]} <= set(planned)]
    if OFF in found and not any(run.chose_longer for run in found[OFF]):
        rows[1] = replace(rows[1], untested=NO_LONGER)
    key = "only_ours_gains_from_longer_attention"
    for arm, name in ((ON, "ours"), (OFF, "ours_no_recurrence")):
        rows.append(comparisons.gains(f"{key}/{name}", arm, None, _gain_in_paper(arm)))
    for arm in (arm for arm in (SHAW, half["shaw"]) if arm in planned):  # absolute encodings cannot attend farther
        more = _gain_in_paper(ON) - _gain_in_paper(arm)
        rows.append(comparisons.gains(f"{key}/{arm.key}", ON, arm, more))
    return rows


def _runs(setup: Setup) -> Runs:
    arms = dict.fromkeys((*ROWS, *(arm for arms in LOSSES.values() for arm in arms)))
    return runs_of(arms, setup)


def _in_paper(better: Arm, worse: Arm, at: At) -> float | None:
    """Difference of two rows of the paper's table in percent of the worse loss."""
    if better not in ROWS or worse not in ROWS:
        return None
    return percent_of_loss(getattr(ROWS[worse], f"ppl_{at}"), getattr(ROWS[better], f"ppl_{at}"))


def _gain_in_paper(arm: Arm) -> float:
    return percent_of_loss(ROWS[arm].ppl_init, ROWS[arm].ppl_best)


def _table(found: Evaluations, unit: str, planned: Collection[Arm]) -> Table:
    return Table.filled(
        "table_6",
        TITLE,
        {arm.key: arm for arm in ROWS if arm in planned},
        loss_columns(found, unit, ROWS),
        notes=tuple(
            f"Best attention length: the shortest whose validation loss is at most {runs[0].sweep['tolerance']} "
            f"{unit_words(unit)} above the lowest."
            for runs in list(found.values())[:1]
        ),
    )


def _losses_table(found: Evaluations, unit: str, planned: Collection[Arm]) -> Table:
    return Table.filled(
        "table_6_losses",
        "Loss over all positions, a random half or the last half, without recurrence",
        {arm.key: arm for arms in LOSSES.values() for arm in arms if arm in planned},
        loss_columns(found, unit, {}),
        notes=(
            "The random half has as many losses as the last half, drawn for each step, but some have little context.",
        ),
    )


def _standard_evaluation(run: Job, setup: Setup) -> Job:
    """Job that evaluates the standard model of Table 1 at the attention lengths of Table 6's last rows."""
    return evaluation_job(ON, run, setup, sorted(TABLE_6_STANDARD.ppl))


def _standard_table(run: Job, unit: str, setup: Setup, outcomes: Outcomes) -> Table:
    swept = outcomes.result(_standard_evaluation(run, setup), "evaluation.json")["valid"]["sweep"]
    losses = {row["attention_length"]: row[unit] for row in swept["lengths"]}
    rows = {"init": ("training's lengths", swept["init"][unit], TABLE_6_STANDARD.ppl_init)}
    rows |= {f"{n}": (f"{n} tokens", losses[n], ppl) for n, ppl in sorted(TABLE_6_STANDARD.ppl.items())}
    return Table.filled(
        "table_6_standard",
        f"Last rows of Table 6: the standard model of Table 1 ({TABLE_6_STANDARD.parameters}M)",
        rows,
        {
            label("arm", "attention length"): lambda row: row[0],
            ours("loss", "validation loss", unit): lambda row: cell(row[1], DIGITS[unit]),
            paper("paper", "loss", "ppl"): lambda row: cell(row[2], 2),
        },
    )


def _lengths_figure(found: Evaluations, outcomes: Outcomes) -> tuple[Figure, ...]:
    curves, unit = {}, outcomes.unit
    for arm in (arm for arm in found if arm in ROWS):
        sweep = found[arm][0].sweep
        losses = {row["attention_length"]: row[unit] for row in (sweep["init"], *sweep["lengths"])}
        curves[arm.title] = (sorted(losses), [losses[length] for length in sorted(losses)])
    if not curves:
        return ()
    path, png = outcomes.figure("table_6_attention_lengths.png")
    level = next(iter(found.values()))[0].found["corpus"]["level"]
    words = ("attention length at evaluation (tokens)", f"validation loss ({unit_words(unit, level)})")
    line_figure(path, curves, *words, "Loss by attention length", log_x=True)
    return (Figure(png, "Validation loss by attention length at evaluation, with the same weights; first seed."),)
