"""Table 6: recurrence, position encoding and loss; each row is one arm of the ablation.

Paper: on WikiText-103 with 128M parameters, recurrence and the relative encoding both help, only the relative
encoding gains from longer attention at evaluation than in training, and absolute encodings need the half loss.
Runs: every row of the table and, for the claim about the half loss, the absolute encodings with the full loss and with
a half of the positions drawn at random; each is evaluated on validation at a grid of attention lengths, and on test at
training's length ("init") and at the length that validation chose ("best"). For the table's last rows, the standard
model of Table 1 where the profile trains it.
Writes: the tables, the differences, loss by attention length, and learning curves with and without recurrence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.engine.jobs import Job, Outcomes, Pending, unit_of
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_6, TABLE_6_STANDARD, table_6
from experiments.report.sections import DIGITS, Cell, Figure, Section, Table, cell, label, ours, over_seeds, paper
from experiments.tables.arms import ENCODINGS, Arm, in_precision_of_training, kept, memory_of_training, trainings
from experiments.tables.comparisons import (
    Comparison,
    compare,
    compare_gains,
    comparisons_table,
    percent_of_loss,
    planned,
)
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
ABSOLUTE = ("absolute", "al_rfou")
LOSSES = {  # of encodings without recurrence, by the positions that training scores
    encoding: tuple(Arm(False, encoding, loss) for loss in ("full", "random_half", "half"))
    for encoding in (*ABSOLUTE, "relative")
}
NOT_COMPARED = [Arm(True, "relative", "half"), Arm(False, "shaw"), Arm(False, "relative", "random_half")]  # by claims
SHAW = Arm(True, "shaw")
AT_BEST = "recurrence_helps_at_the_best_lengths/best"
NO_LONGER = (
    "Without recurrence no run gained from longer windows on validation, so this would be the comparison at training’s "
    "lengths again."
)


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
    if ON not in found:
        raise Pending(all_runs[ON][0].name)
    metrics, unit = outcomes.metrics(all_runs[ON][0]), outcomes.unit
    tokens = sorted({one.test("init")["tokens"] for of_arm in found.values() for one in of_arm})
    scored = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[-1])))
    tables = [_table(found, unit, setup)]
    if standard := standard_run(setup):
        tables.append(_standard_table(standard, unit, setup, outcomes))
    tables.append(_losses_table(found, unit))
    return Section(
        id="table_6",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{metrics['corpus']['name']}, {metrics['parameters']:,} parameters, {metrics['steps']:,} steps, segments "
            f"of {metrics['evaluation']['segment_len']}. Every row is scored on {scored} tokens of the "
            "test split. A difference rests on the tokens and seeds that both of its rows have, so it can differ from "
            "that of their means. Init: at training's lengths, where a token with recurrence sees the memory and "
            "its segment so far. Best: at the attention length chosen on "
            f"{_validation_words(setup)}, which the validation columns are of; every token then sees as many, itself "
            f"included. Rows without recurrence are scored in {WINDOWS}, at training's length too. The "
            "paper's numbers are of validation."
        ),
        tables=(*tables, comparisons_table("table_6", TITLE, unit, 3, differences(found, outcomes))),
        figures=(_lengths_figure(found, metrics, outcomes), _learning_curves(all_runs, metrics, outcomes)),
    )


def differences(evaluated: Evaluations, outcomes: Outcomes) -> list[Comparison]:
    """Return the differences between arms that are planned, those that claims are judged by and some beside them."""
    half = {name: Arm(False, name, "half") for name in ENCODINGS}
    others = [name for name in ENCODINGS if name != "relative"]
    pairs: list[tuple[str, Arm, Arm, At]] = [  # key, the arm that is lower if the claim is right, the other
        ("recurrence_helps/init", ON, OFF, "init"),
        (AT_BEST, ON, OFF, "best"),
        ("our_encoding_is_better/shaw_recurrence", ON, SHAW, "best"),
        *((f"our_encoding_is_better/{name}_half", half["relative"], half[name], "best") for name in others),
    ]
    for encoding, (full, random_half, last_half) in LOSSES.items():
        claim = "half_loss_rescues_absolute_encodings" if encoding in ABSOLUTE else "beside/half_loss"
        pairs += [(f"{claim}/{encoding}", last_half, full, "init")]
        pairs += [(f"{claim}/{encoding}_random_half", last_half, random_half, "init")]
    found = [
        compare(key, better, worse, at, evaluated, outcomes, _in_paper(better, worse, at))
        for key, better, worse, at in pairs
        if planned(better, outcomes) and planned(worse, outcomes)
    ]
    if OFF in evaluated and not any(run.chose_longer for run in evaluated[OFF]):
        found = [replace(one, untested=NO_LONGER) if one.key == AT_BEST else one for one in found]
    key = "only_ours_gains_from_longer_attention"
    for arm, name in ((ON, "ours"), (OFF, "ours_no_recurrence")):
        if planned(arm, outcomes):
            found.append(compare_gains(f"{key}/{name}", arm, None, evaluated, outcomes, _gain_in_paper(arm)))
    for arm in (SHAW, half["shaw"]):  # absolute encodings cannot attend farther than in training
        if planned(arm, outcomes):
            more = _gain_in_paper(ON) - _gain_in_paper(arm)
            found.append(compare_gains(f"{key}/{arm.key}", ON, arm, evaluated, outcomes, more))
    return found


def _all_runs(setup: Setup) -> dict[Arm, list[Job]]:
    return {
        arm: runs(arm, setup)
        for arm in kept(dict.fromkeys((*ROWS, *(arm for arms in LOSSES.values() for arm in arms))), setup)
    }


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
        {arm.key: arm for arm in ROWS if arm in found},
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


def _losses_table(found: Evaluations, unit: str) -> Table:
    return Table.filled(
        "table_6_losses",
        "Loss over all positions, a random half or the last half, without recurrence",
        {arm.key: arm for arms in LOSSES.values() for arm in arms if arm in found},
        {label("arm"): lambda arm: arm.title, **loss_columns(found, unit)},
        notes=(
            "Table 6 has the last half alone. The random half has as many losses, drawn for each step, but some have "
            "little context.",
            _attention_length_note(found, unit),
        ),
    )


def _attention_length_note(found: Evaluations, unit: str) -> str:
    tolerance = next(iter(found.values()))[0].sweep["tolerance"]
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
        caption=f"Validation loss during training at training's lengths, without recurrence in {WINDOWS}; one line per "
        "seed.",
        alt="Learning curves with and without recurrence",
    )


def _loss_axis(metrics: Mapping[str, Any]) -> str:
    """Name of the losses and their unit for the axis of a figure."""
    unit = "byte" if metrics["corpus"]["level"] == "byte" else "character"
    return f"validation loss ({'perplexity' if unit_of(metrics) == 'ppl' else f'bits per {unit}'})"
