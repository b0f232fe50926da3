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
from pathlib import Path

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes, TrainingResult
from experiments.engine.setup import Setup
from experiments.paper import TABLE_6, TABLE_6_STANDARD, table_6
from experiments.report.sections import (
    DIGITS,
    Cell,
    Figure,
    Section,
    Table,
    Text,
    cell,
    label,
    ours,
    over_seeds,
    paper,
)
from experiments.tables.arms import ENCODINGS, Arm, in_precision_of_training, kept, memory_of_training, trainings
from experiments.tables.comparisons import Comparison, compare, compare_gains, comparisons_table, percent_of_loss
from experiments.tables.length_sweep import (
    IN_FIGURE,
    OFF,
    ON,
    WINDOWS,
    Evaluation,
    Evaluations,
    cells,
    columns,
    evaluations,
    with_sweeps,
)
from experiments.tables.main_results import standard_run
from txl_lightning.reporting.canvas import line_figure

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
    ablation, standard = with_sweeps(_all_runs(setup), setup), standard_run(setup)
    return [*ablation, standard, _standard_evaluation(standard, setup)] if standard else ablation


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the tables and both figures."""
    all_runs = _all_runs(setup)
    found = evaluations(all_runs, setup, outcomes)
    result = outcomes.training(all_runs[ON][0])
    tokens = sorted({one.test("init")["tokens"] for of_arm in found.values() for one in of_arm})
    scored = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[-1])))
    tables = [
        _table(found, result.unit, setup),
        comparisons_table("table_6", TITLE, result.unit, 3, differences(found, outcomes)),
    ]
    if any(arm in found for arm in FULL_LOSS):
        tables.insert(1, _full_loss_table(found, result.unit))
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
            f"The best length is chosen on {_validation_words(setup)}, which the validation columns are of. The "
            "paper's table is of validation."
        ),
        tables=tuple(tables),
        figures=(
            _lengths_figure(found, result, outcomes),
            _learning_curves({arm: all_runs[arm] for arm in (ON, OFF) if arm in all_runs}, result, outcomes),
        ),
    )


def differences(evaluated: Evaluations, outcomes: Outcomes) -> list[Comparison]:
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
        compare(
            key, better, worse, "init" if at == "init" else "best", evaluated, outcomes, _in_paper(better, worse, at)
        )
        for key, better, worse, at in pairs
        if better in evaluated and worse in evaluated
    ]
    key = "only_ours_gains_from_longer_attention"
    found.append(compare_gains(f"{key}/ours", ON, None, evaluated, outcomes, _gain_in_paper(ON)))
    for arm in (SHAW, half["shaw"]):  # absolute encodings cannot attend farther than in training
        if arm in evaluated:
            more = _gain_in_paper(ON) - _gain_in_paper(arm)
            found.append(compare_gains(f"{key}/{arm.key}", ON, arm, evaluated, outcomes, more))
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


def _standard_evaluation(run: Job, setup: Setup) -> Job:
    """Job that evaluates the standard model of Table 1 at the attention lengths of Table 6's last rows."""
    grid = f"attention_lengths=[{','.join(map(str, sorted(TABLE_6_STANDARD.ppl)))}]"
    evaluate = in_precision_of_training(setup.profile.evaluate, setup)
    words = (f"checkpoint={run.checkpoint}", *evaluate, "splits=[valid,test]", "select_on=valid", grid)
    return Job(f"{run.name}-lengths", "evaluate", words, run.arm, needs=(run.name,))


def _validation_words(setup: Setup) -> str:
    """Name the part of validation at which attention lengths are compared."""
    limits = [word.partition("=")[2] for word in setup.profile.evaluate if word.startswith("sweep_tokens=")]
    return f"the first {int(limits[-1]):,} tokens of validation" if limits else "validation"


def _table(found: Mapping[Arm, list[Evaluation]], unit: str, setup: Setup) -> Table:
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
                **cells(found[arm], unit),
                "memory": _memory_cell(found[arm], unit),
                "paper_init": cell(ROWS[arm].ppl_init, 2),
                "paper_best": cell(ROWS[arm].ppl_best, 2),
                "paper_length": cell(ROWS[arm].attention_length, 0),
            }
            for arm in kept(ROWS, setup)
        },
        notes=(
            _attention_length_note(found, unit),
            f"Memory at evaluation only: a model trained without memory reads with one of {memory_of_training(setup)} "
            "tokens, first seed. It is not the row's score.",
        ),
    )


def _memory_cell(of_arm: list[Evaluation], unit: str) -> Cell:
    """Loss with a memory that training did not have; empty where it was not measured."""
    measured = {one.seed: one.found["test"].get("memory_at_evaluation") for one in of_arm}
    losses = {seed: memory[unit] for seed, memory in measured.items() if memory}
    return over_seeds(losses, DIGITS[unit]) if losses else None


def _standard_table(run: Job, unit: str, setup: Setup, outcomes: Outcomes) -> Table:
    swept = outcomes.result(_standard_evaluation(run, setup), "evaluation.json")["valid"]["sweep"]
    losses = {row["attention_length"]: row[unit] for row in swept["lengths"]}
    rows = {"init": ("training's lengths", swept["init"][unit], TABLE_6_STANDARD.ppl_init)}
    rows |= {f"{n}": (f"{n} tokens", losses[n], ppl) for n, ppl in sorted(TABLE_6_STANDARD.ppl.items())}
    return Table(
        id="table_6_standard",
        caption=f"Last rows of Table 6: the standard model of Table 1 ({TABLE_6_STANDARD.parameters}M)",
        columns=(label("arm", "attention length"), ours("loss", "validation", unit), paper("paper", "ppl", "ppl")),
        rows={
            key: {"arm": Text(title), "loss": cell(ours_, DIGITS[unit]), "paper": cell(theirs, 2)}
            for key, (title, ours_, theirs) in rows.items()
        },
    )


def _full_loss_table(found: Mapping[Arm, list[Evaluation]], unit: str) -> Table:
    return Table(
        id="table_6_full_loss",
        caption="Absolute encodings with the full loss, which Table 6 leaves out",
        columns=(label("arm"), *columns(unit)),
        rows={arm.key: {"arm": Text(arm.title), **cells(found[arm], unit)} for arm in FULL_LOSS if arm in found},
        notes=(_attention_length_note(found, unit),),
    )


def _attention_length_note(found: Mapping[Arm, list[Evaluation]], unit: str) -> str:
    tolerance = found[ON][0].sweep["tolerance"]
    return f"Attention length: the shortest whose validation loss is at most {tolerance} {unit} above the best."


def _lengths_figure(found: Mapping[Arm, list[Evaluation]], result: TrainingResult, outcomes: Outcomes) -> Figure:
    curves, dashed = {}, {}
    for arm in IN_FIGURE:
        if arm in found:
            sweep = found[arm][0].sweep
            trained = sweep["init"]
            curves[arm.title] = [_line([trained, *sweep["lengths"]], result.unit)]
            if sweep.get("unclamped"):
                dashed[arm.title] = [_line(sweep["unclamped"], result.unit)]
    words = ("attention length at evaluation (tokens)", _loss_axis(result), "Loss by attention length")
    path = _figure_path(outcomes, "table_6_attention_lengths")
    line_figure(path, curves, *words, dashed, log_x=True, dashed_label="distances not clamped")
    return Figure(
        f"{path.parent.name}/{path.name}",
        None,
        caption="Validation loss by attention length at evaluation, with the same weights; first seed. Beyond the "
        "longest distance of training, distances are clamped there; dashed lines: without the clamp.",
        alt=f"Loss against attention length for {len(curves)} rows of Table 6",
    )


def _line(rows: list[dict[str, float]], unit: str) -> tuple[list[float], list[float]]:
    """Attention lengths in order and the loss at each, of the last row that has it."""
    losses = {row["attention_length"]: row[unit] for row in rows}
    return [float(length) for length in sorted(losses)], [losses[length] for length in sorted(losses)]


def _learning_curves(found: dict[Arm, list[Job]], result: TrainingResult, outcomes: Outcomes) -> Figure:
    curves = {}
    for arm, arm_runs in found.items():
        validations = [outcomes.validation(run) for run in arm_runs]
        curves[arm.title] = [
            ([row["tokens"] for row in rows], [row[f"val/{result.unit}"] for row in rows]) for rows in validations
        ]
    path = _figure_path(outcomes, "learning_curves")
    line_figure(path, curves, "training tokens", _loss_axis(result), "With and without recurrence")
    return Figure(
        f"{path.parent.name}/{path.name}",
        None,
        caption="Validation loss during training at training's lengths; one line per seed.",
        alt="Learning curves with and without recurrence",
    )


def _figure_path(outcomes: Outcomes, name: str) -> Path:
    outcomes.figures.mkdir(parents=True, exist_ok=True)
    return outcomes.figures / f"{name}.png"


def _loss_axis(result: TrainingResult) -> str:
    """Name of the losses and their unit for the axis of a figure."""
    unit = "perplexity" if result.unit == "ppl" else f"bits per {'byte' if result.level == 'byte' else 'character'}"
    return f"validation loss ({unit})"
