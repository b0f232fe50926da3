"""Table 6: recurrence, position encoding and loss; each row is one arm of the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row of the table and, for the claim about the half loss, the absolute encodings with the full loss; each
is evaluated on validation at a grid of attention lengths, and on test at training's length ("init") and at the length
that validation chose ("best"). For the table's last rows, the standard model of Table 1 where the profile trains it.
Writes: the tables, the differences, loss by attention length, and learning curves with and without recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes, TrainingResult
from experiments.engine.setup import Setup
from experiments.paper import TABLE_6, TABLE_6_STANDARD, table_6
from experiments.report.cells import DIGITS, Text, number, unit_in_words
from experiments.report.sections import Figure, Section, Table, label, ours, paper
from experiments.tables.arms import ENCODINGS, Arm, kept, memory_of_training, trainings
from experiments.tables.shared.comparisons import Comparison, comparisons_table, percent_of_loss
from experiments.tables.shared.job_results import drawn_figure
from experiments.tables.shared.length_sweep import (
    IN_FIGURE,
    OFF,
    ON,
    WINDOWS,
    SweepsBySeed,
    cells,
    columns,
    memory_cell,
    standard_sweep_job,
    sweeps_by_seed,
    validation_words,
    with_sweeps,
)
from experiments.tables.shared.published_models import standard_run
from experiments.tables.shared.scored_losses import Losses, compare, compare_gains, scored_runs

TITLE = "Table 6: recurrence, encoding, loss"
PAPER = (
    "On WikiText-103, with 128M parameters and a backpropagation length of 128, recurrence lowers the perplexity from "
    "29.59 to 27.02, the paper's encoding is better than Shaw's and the absolute ones, and only it gains when the "
    "attention at evaluation is longer than in training (27.02 to 26.77 at 500). Absolute encodings are listed with "
    "the half loss alone, because they only work well with it."
)
ROWS = {Arm(row.recurrence, row.encoding, row.loss): row for row in TABLE_6}
FULL_LOSS = [Arm(False, "absolute"), Arm(False, "al_rfou")]
NOT_COMPARED = [Arm(True, "relative", "half"), Arm(False, "shaw", "full")]  # by any claim
SHAW = Arm(True, "shaw")


def runs(arm: Arm, setup: Setup) -> list[Job]:
    """Return the trainings of a row."""
    return trainings(arm, setup, compared=arm not in NOT_COMPARED)


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    ablation = [job for arm, arm_runs in _all_runs(setup).items() for job in with_sweeps(arm, arm_runs, setup)]
    standard = standard_run(setup)
    return [*ablation, standard, standard_sweep_job(standard, TABLE_6_STANDARD.ppl, setup)] if standard else ablation


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the tables and both figures."""
    all_runs = _all_runs(setup)
    sweeps = {arm: sweeps_by_seed(arm, arm_runs, setup, outcomes) for arm, arm_runs in all_runs.items()}
    result = outcomes.training(all_runs[ON][0])
    tokens = sorted({sweep.tokens for by_seed in sweeps.values() for sweep in by_seed.values()})
    scored = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[-1])))
    found = differences(scored_runs(all_runs, setup, outcomes), outcomes)
    tables = [_table(sweeps, result.unit, setup), comparisons_table("table_6", TITLE, result.unit, 3, found)]
    if any(arm in sweeps for arm in FULL_LOSS):
        tables.insert(1, _full_loss_table(sweeps, result.unit))
    if standard := standard_run(setup):
        tables.insert(1, _standard_table(standard, result.unit, setup, outcomes))
    return Section(
        id="table_6",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{result.corpus}, {result.parameters:,} parameters, {result.steps:,} steps, segments of "
            f"{result.metrics['evaluation']['segment_len']}. Every row is scored on {scored} tokens of the "
            "test split, and a difference rests on the tokens that both of its rows share. "
            "Attention length: how many tokens a token attends to, itself included. Rows without "
            f"recurrence are scored in {WINDOWS}, at training's length too (init). "
            f"The best length is chosen on {validation_words(setup)}, which the validation columns are of. The paper's "
            "table is of validation."
        ),
        tables=tuple(tables),
        figures=(
            _lengths_figure(sweeps, result, outcomes),
            _learning_curves({arm: all_runs[arm] for arm in (ON, OFF) if arm in all_runs}, result, outcomes),
        ),
    )


def differences(losses: Losses, outcomes: Outcomes) -> list[Comparison]:
    """Return the differences that claims are judged by, as far as their arms were run."""
    half = {name: Arm(False, name, "half") for name in ENCODINGS}
    pairs = [("recurrence_helps/init", ON, OFF, "init"), ("recurrence_helps_at_the_best_lengths/best", ON, OFF, "best")]
    pairs.append(("our_encoding_is_better/shaw_recurrence", ON, SHAW, "best"))
    others = [name for name in ENCODINGS if name != "relative"]
    pairs += [(f"our_encoding_is_better/{name}_half", half["relative"], half[name], "best") for name in others]
    pairs += [
        (f"half_loss_rescues_absolute_encodings/{arm.encoding}", half[arm.encoding], arm, "init") for arm in FULL_LOSS
    ]
    found = [
        compare(key, better, worse, "init" if at == "init" else "best", losses, outcomes, _in_paper(better, worse, at))
        for key, better, worse, at in pairs
        if better in losses and worse in losses
    ]
    key = "only_ours_gains_from_longer_attention"
    found.append(compare_gains(f"{key}/ours", ON, None, losses, outcomes, _gain_in_paper(ON)))
    for arm in (SHAW, half["shaw"]):  # absolute encodings cannot attend farther than in training
        if arm in losses:
            more = _gain_in_paper(ON) - _gain_in_paper(arm)
            found.append(compare_gains(f"{key}/{arm.key}", ON, arm, losses, outcomes, more))
    return found


def _all_runs(setup: Setup) -> dict[Arm, list[Job]]:
    return {arm: runs(arm, setup) for arm in kept((*ROWS, *FULL_LOSS), setup)}


def _in_paper(better: Arm, worse: Arm, at: str) -> float | None:
    """Difference of two rows of the paper's table in percent of the worse loss."""
    if better not in ROWS or worse not in ROWS:
        return None
    one, other = ROWS[worse], ROWS[better]
    return percent_of_loss(getattr(one, f"ppl_{at}"), getattr(other, f"ppl_{at}"))


def _gain_in_paper(arm: Arm) -> float:
    row = table_6(arm.recurrence, arm.encoding, arm.loss)
    return percent_of_loss(row.ppl_init, row.ppl_best)


def _table(sweeps: dict[Arm, SweepsBySeed], unit: str, setup: Setup) -> Table:
    return Table(
        id="table_6",
        caption=TITLE,
        columns=(
            label("arm"),
            *columns(unit),
            ours("memory", "test, memory at evaluation only", unit),
            paper("paper_init", "init", "ppl"),
            paper("paper_best", "best", "ppl"),
            paper("paper_length", "attention length", "tokens"),
        ),
        rows={
            arm.key: {
                "arm": Text(arm.title),
                **cells(sweeps[arm], unit),
                "memory": memory_cell(sweeps[arm], unit),
                "paper_init": number(ROWS[arm].ppl_init, 2),
                "paper_best": number(ROWS[arm].ppl_best, 2),
                "paper_length": number(ROWS[arm].attention_length, 0),
            }
            for arm in kept(ROWS, setup)
        },
        notes=(
            _attention_length_note(sweeps, unit),
            f"Memory at evaluation only: a model trained without memory reads with one of {memory_of_training(setup)} "
            "tokens, first seed. It is not the row's score.",
        ),
    )


def _standard_table(run: Job, unit: str, setup: Setup, outcomes: Outcomes) -> Table:
    job = standard_sweep_job(run, TABLE_6_STANDARD.ppl, setup)
    swept = outcomes.result(job, "evaluation.json")["valid"]["sweep"]
    losses = {row["attention_length"]: row[unit] for row in swept["lengths"]}
    rows = {"init": ("training's lengths", swept["init"][unit], TABLE_6_STANDARD.ppl_init)}
    rows |= {f"{n}": (f"{n} tokens", losses[n], ppl) for n, ppl in sorted(TABLE_6_STANDARD.ppl.items())}
    return Table(
        id="table_6_standard",
        caption=f"Last rows of Table 6: the standard model of Table 1 ({TABLE_6_STANDARD.parameters}M)",
        columns=(label("arm", "attention length"), ours("loss", "validation", unit), paper("paper", "ppl", "ppl")),
        rows={
            key: {"arm": Text(title), "loss": number(ours_, DIGITS[unit]), "paper": number(theirs, 2)}
            for key, (title, ours_, theirs) in rows.items()
        },
    )


def _full_loss_table(sweeps: dict[Arm, SweepsBySeed], unit: str) -> Table:
    return Table(
        id="table_6_full_loss",
        caption="Absolute encodings with the full loss, which Table 6 leaves out",
        columns=(label("arm"), *columns(unit)),
        rows={arm.key: {"arm": Text(arm.title), **cells(sweeps[arm], unit)} for arm in FULL_LOSS if arm in sweeps},
        notes=(_attention_length_note(sweeps, unit),),
    )


def _attention_length_note(sweeps: dict[Arm, SweepsBySeed], unit: str) -> str:
    tolerance = next(iter(sweeps[ON].values())).tolerance
    return f"Attention length: the shortest whose validation loss is at most {tolerance} {unit} above the best."


def _lengths_figure(sweeps: dict[Arm, SweepsBySeed], result: TrainingResult, outcomes: Outcomes) -> Figure:
    curves, dashed = {}, {}
    for arm in IN_FIGURE:
        if arm in sweeps:
            first = next(iter(sweeps[arm].values()))
            points = dict(first.losses)
            if first.trained is not None:
                points.setdefault(first.trained, first.valid_init)
            curves[arm.title] = [_line(points)]
            if first.unclamped:
                dashed[arm.title] = [_line(first.unclamped)]
    return drawn_figure(
        outcomes,
        "table_6_attention_lengths",
        curves,
        "attention length at evaluation (tokens)",
        f"validation loss ({unit_in_words(result.unit, result.level)})",
        "Loss by attention length",
        caption="Validation loss by attention length at evaluation, with the same weights; first seed. Beyond the "
        "longest distance of training, distances are clamped there; dashed lines: without the clamp.",
        alt=f"Loss against attention length for {len(curves)} rows of Table 6",
        dashed=dashed,
        log_x=True,
        dashed_label="distances not clamped",
    )


def _line(points: Mapping[int, float]) -> tuple[list[float], list[float]]:
    ordered = sorted(points.items())
    return [float(length) for length, _ in ordered], [loss for _, loss in ordered]


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
