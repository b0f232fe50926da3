"""Table 6: recurrence, position encoding and loss; each row is one arm of the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row of the table and, for the claim about the half loss, the absolute encodings with the full loss; each
is evaluated on validation at a grid of attention lengths, and on test at training's length ("init") and at the length
that validation chose ("best"). For the table's last rows, the standard model of Table 1 where the profile trains it.
Writes: the tables, the differences, loss by attention length, and learning curves with and without recurrence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.engine.jobs import Job, Outcomes, unit_of
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_6, TABLE_6_STANDARD, table_6
from experiments.report.sections import DIGITS, Cell, Figure, Section, Table, cell, label, ours, over_seeds, paper
from experiments.tables.arms import ENCODINGS, Arm, in_precision_of_training, kept, memory_of_training, trainings
from experiments.tables.comparisons import Comparison, compare, compare_gains, comparisons_table, percent_of_loss
from experiments.tables.length_sweep import (
    IN_FIGURE,
    OFF,
    ON,
    WINDOWS,
    At,
    Evaluation,
    Evaluations,
    evaluations,
    loss_columns,
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
    metrics, unit = outcomes.metrics(all_runs[ON][0]), outcomes.unit
    tokens = sorted({one.test("init")["tokens"] for of_arm in found.values() for one in of_arm})
    scored = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[-1])))
    tables = [_table(found, unit, setup)]
    if standard := standard_run(setup):
        tables.append(_standard_table(standard, unit, setup, outcomes))
    if any(arm in found for arm in FULL_LOSS):
        tables.append(_full_loss_table(found, unit))
    return Section(
        id="table_6",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{metrics['corpus']['name']}, {metrics['parameters']:,} parameters, {metrics['steps']:,} steps, segments "
            f"of {metrics['evaluation']['segment_len']}. Every row is scored on {scored} tokens of the "
            "test split, and a difference rests on the tokens that both of its rows share. "
            "Attention length: how many tokens a token attends to, itself included. Rows without "
            f"recurrence are scored in {WINDOWS}, at training's length too (init). "
            f"The best length is chosen on {_validation_words(setup)}, which the validation columns are of. The "
            "paper's table is of validation."
        ),
        tables=(*tables, comparisons_table("table_6", TITLE, unit, 3, differences(found, outcomes))),
        figures=(_lengths_figure(found, metrics, outcomes), _learning_curves(all_runs, metrics, outcomes)),
    )


def differences(evaluated: Evaluations, outcomes: Outcomes) -> list[Comparison]:
    """Return the differences that claims are judged by, as far as their arms were run."""
    half = {name: Arm(False, name, "half") for name in ENCODINGS}
    others = [name for name in ENCODINGS if name != "relative"]
    pairs: list[tuple[str, Arm, Arm, At]] = [  # key, the arm that is lower if the claim is right, the other
        ("recurrence_helps/init", ON, OFF, "init"),
        ("recurrence_helps_at_the_best_lengths/best", ON, OFF, "best"),
        ("our_encoding_is_better/shaw_recurrence", ON, SHAW, "best"),
        *((f"our_encoding_is_better/{name}_half", half["relative"], half[name], "best") for name in others),
        *((f"half_loss_rescues_absolute_encodings/{a.encoding}", half[a.encoding], a, "init") for a in FULL_LOSS),
    ]
    found = [
        compare(key, better, worse, at, evaluated, outcomes, _in_paper(better, worse, at))
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


def _in_paper(better: Arm, worse: Arm, at: At) -> float | None:
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


def _table(found: Evaluations, unit: str, setup: Setup) -> Table:
    return Table.filled(
        "table_6",
        TITLE,
        {arm.key: arm for arm in kept(ROWS, setup)},
        {
            label("arm"): lambda arm: arm.title,
            **loss_columns(found, unit),
            ours("memory", "test, memory at evaluation only", unit): lambda arm: _memory_cell(found[arm], unit),
            paper("paper_init", "init", "ppl"): lambda arm: cell(ROWS[arm].ppl_init, 2),
            paper("paper_best", "best", "ppl"): lambda arm: cell(ROWS[arm].ppl_best, 2),
            paper("paper_length", "attention length", "tokens"): lambda arm: cell(ROWS[arm].attention_length, 0),
        },
        notes=(
            _attention_length_note(found, unit),
            f"Memory at evaluation only: a model trained without memory reads with one of {memory_of_training(setup)} "
            "tokens, first seed. It is not the row's score.",
        ),
    )


def _memory_cell(of_arm: Sequence[Evaluation], unit: str) -> Cell:
    """Loss with a memory that training did not have; empty where it was not measured."""
    measured = {one.seed: one.found["test"].get("memory_at_evaluation") for one in of_arm}
    losses = {seed: memory[unit] for seed, memory in measured.items() if memory}
    return over_seeds(losses, DIGITS[unit]) if losses else None


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
            ours("loss", "validation", unit): lambda row: cell(row[1], DIGITS[unit]),
            paper("paper", "ppl", "ppl"): lambda row: cell(row[2], 2),
        },
    )


def _full_loss_table(found: Evaluations, unit: str) -> Table:
    return Table.filled(
        "table_6_full_loss",
        "Absolute encodings with the full loss, which Table 6 leaves out",
        {arm.key: arm for arm in FULL_LOSS if arm in found},
        {label("arm"): lambda arm: arm.title, **loss_columns(found, unit)},
        notes=(_attention_length_note(found, unit),),
    )


def _attention_length_note(found: Evaluations, unit: str) -> str:
    tolerance = found[ON][0].sweep["tolerance"]
    return f"Attention length: the shortest whose validation loss is at most {tolerance} {unit} above the best."


def _lengths_figure(found: Evaluations, metrics: Mapping[str, Any], outcomes: Outcomes) -> Figure:
    unit, curves, dashed = unit_of(metrics), {}, {}
    for arm in IN_FIGURE:
        if arm in found:
            sweep = found[arm][0].sweep
            curves[arm.title] = [_line([sweep["init"], *sweep["lengths"]], unit)]
            if sweep.get("unclamped"):
                dashed[arm.title] = [_line(sweep["unclamped"], unit)]
    words = ("attention length at evaluation (tokens)", _loss_axis(metrics), "Loss by attention length")
    path, png = outcomes.figure("table_6_attention_lengths.png")
    line_figure(path, curves, *words, dashed, log_x=True, dashed_label="distances not clamped")
    return Figure(
        png,
        None,
        caption="Validation loss by attention length at evaluation, with the same weights; first seed. Beyond the "
        "longest distance of training, distances are clamped there; dashed lines: without the clamp.",
        alt=f"Loss against attention length for {len(curves)} rows of Table 6",
    )


def _line(rows: list[dict[str, float]], unit: str) -> tuple[list[float], list[float]]:
    """Attention lengths in order and the loss at each, of the last row that has it."""
    losses = {row["attention_length"]: row[unit] for row in rows}
    return [float(length) for length in sorted(losses)], [losses[length] for length in sorted(losses)]


def _learning_curves(runs: Mapping[Arm, list[Job]], metrics: Mapping[str, Any], outcomes: Outcomes) -> Figure:
    curves = {}
    for arm in (arm for arm in (ON, OFF) if arm in runs):
        files = [outcomes.runs / run.name / "validation.jsonl" for run in runs[arm] if outcomes.has(run)]
        rows_by_run = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        curves[arm.title] = [
            ([row["tokens"] for row in rows], [row[f"val/{unit_of(metrics)}"] for row in rows]) for rows in rows_by_run
        ]
    path, png = outcomes.figure("learning_curves.png")
    line_figure(path, curves, "training tokens", _loss_axis(metrics), "With and without recurrence")
    return Figure(
        png,
        None,
        caption="Validation loss during training at training's lengths; one line per seed.",
        alt="Learning curves with and without recurrence",
    )


def _loss_axis(metrics: Mapping[str, Any]) -> str:
    """Name of the losses and their unit for the axis of a figure."""
    unit = "byte" if metrics["corpus"]["level"] == "byte" else "character"
    return f"validation loss ({'perplexity' if unit_of(metrics) == 'ppl' else f'bits per {unit}'})"
