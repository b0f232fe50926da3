"""Table 6: recurrence, position encoding and loss; each row is one arm of the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row of the table and, for the claim about the half loss, the absolute encodings with the full loss; each
is evaluated at training's lengths ("init") and at a grid of attention lengths ("best").
Writes: both tables, loss by attention length, and learning curves with and without recurrence.
"""

from __future__ import annotations

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes, TrainingResult
from experiments.engine.setup import Setup
from experiments.paper import TABLE_6
from experiments.report.cells import Text, number, unit_in_words
from experiments.report.sections import Figure, Section, Table, label, ours, paper
from experiments.tables.arms import Arm, trainings
from experiments.tables.shared.job_results import drawn_figure
from experiments.tables.shared.length_sweep import SweepsBySeed, cells, columns, gain_cell, sweeps_by_seed, with_sweeps

TITLE = "Table 6: recurrence, encoding, loss"
PAPER = (
    "On WikiText-103, with 128M parameters and a backpropagation length of 128, recurrence lowers the perplexity from "
    "29.59 to 27.02, the paper's encoding is better than Shaw's and the absolute ones, and only it gains when the "
    "attention at evaluation is longer than in training (27.02 to 26.77 at 500). Absolute encodings are listed with "
    "the half loss alone, because they only work well with it."
)
ROWS = {Arm(row.recurrence, row.encoding, row.loss): row for row in TABLE_6}
FULL_LOSS = [Arm(False, "absolute"), Arm(False, "al_rfou")]
ONE_SEED = [Arm(True, "relative", "half"), Arm(False, "shaw", "full")]  # no claim rests on them
ON, OFF = Arm(), Arm(False)
IN_FIGURE = [ON, Arm(True, "shaw"), OFF, *(Arm(False, name, "half") for name in ("relative", "absolute", "al_rfou"))]


def runs(arm: Arm, setup: Setup) -> list[Job]:
    """Return the trainings of a row."""
    return trainings(arm, setup, one_seed=arm in ONE_SEED)


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return [job for arm in (*ROWS, *FULL_LOSS) for job in with_sweeps(runs(arm, setup), setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return both tables and both figures."""
    sweeps = {arm: sweeps_by_seed(runs(arm, setup), setup, outcomes) for arm in (*ROWS, *FULL_LOSS)}
    result = outcomes.training(runs(ON, setup)[0])
    first = next(iter(sweeps[ON].values()))
    return Section(
        id="table_6",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{result.corpus}, {result.parameters:,} parameters, {result.steps:,} steps, segments of "
            f"{result.metrics['evaluation']['segment_len']}. Every row is scored on the same {first.tokens:,} tokens "
            "of the test split. Attention length: how many tokens a token attends to; for absolute encodings without "
            "recurrence, the segment and the context in front of it, at most those of training. With the half loss "
            "and no recurrence, init is the loss of the trained half."
        ),
        tables=(_table(sweeps, result.unit), _full_loss_table(sweeps, result.unit)),
        figures=(
            _lengths_figure(sweeps, result, outcomes),
            _learning_curves({arm: runs(arm, setup) for arm in (ON, OFF)}, result, outcomes),
        ),
    )


def _table(sweeps: dict[Arm, SweepsBySeed], unit: str) -> Table:
    return Table(
        id="table_6",
        caption=TITLE,
        columns=(
            label("arm"),
            *columns(unit),
            ours("beyond", "gain beyond training's length", unit),
            paper("paper_init", "init", "ppl"),
            paper("paper_best", "best", "ppl"),
            paper("paper_length", "attention length", "tokens"),
        ),
        rows={
            arm.key: {
                "arm": Text(arm.title),
                **cells(sweeps[arm], unit),
                "beyond": gain_cell(sweeps[arm], unit),
                "paper_init": number(row.ppl_init, 2),
                "paper_best": number(row.ppl_best, 2),
                "paper_length": number(row.attention_length, 0),
            }
            for arm, row in ROWS.items()
        },
        notes=(
            _attention_length_note(sweeps, unit),
            "Gain beyond training's length: the best loss at attention lengths up to training's, minus the best at "
            "longer ones; empty where the model cannot attend farther.",
        ),
    )


def _full_loss_table(sweeps: dict[Arm, SweepsBySeed], unit: str) -> Table:
    return Table(
        id="table_6_full_loss",
        caption="Absolute encodings with the full loss, which Table 6 leaves out",
        columns=(label("arm"), *columns(unit)),
        rows={arm.key: {"arm": Text(arm.title), **cells(sweeps[arm], unit)} for arm in FULL_LOSS},
        notes=(_attention_length_note(sweeps, unit),),
    )


def _attention_length_note(sweeps: dict[Arm, SweepsBySeed], unit: str) -> str:
    tolerance = next(iter(sweeps[ON].values())).tolerance
    return f"Attention length: the shortest whose loss is at most {tolerance} {unit} above the best."


def _lengths_figure(sweeps: dict[Arm, SweepsBySeed], result: TrainingResult, outcomes: Outcomes) -> Figure:
    curves = {}
    for arm in IN_FIGURE:
        first = next(iter(sweeps[arm].values()))
        points = sorted({**first.losses, **({first.trained: first.init} if first.limit else {})}.items())
        curves[arm.title] = [([length for length, _ in points], [loss for _, loss in points])]
    return drawn_figure(
        outcomes,
        "table_6_attention_lengths",
        curves,
        "attention length at evaluation (tokens)",
        f"test loss ({unit_in_words(result.unit, result.level)})",
        "Loss by attention length",
        caption="Test loss by attention length at evaluation, with the same weights; first seed.",
        alt="Loss against attention length for six rows of Table 6",
    )


def _learning_curves(found: dict[Arm, list[Job]], result: TrainingResult, outcomes: Outcomes) -> Figure:
    curves = {}
    for arm, arm_runs in found.items():
        validations = [outcomes.validation(run) for run in arm_runs]
        curves[arm.title] = [
            ([row["tokens"] for row in rows], [row[f"val/{result.unit}"] for row in rows]) for rows in validations
        ]
    return drawn_figure(
        outcomes,
        "learning_curves",
        curves,
        "training tokens",
        f"validation loss ({unit_in_words(result.unit, result.level)})",
        "With and without recurrence",
        caption="Validation loss during training at training's lengths; one line per seed.",
        alt="Learning curves with and without recurrence",
    )
