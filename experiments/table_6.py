"""Table 6: recurrence, position encoding and loss, one cell of the ablation a row.

The paper found, on WikiText-103 with 128M parameters, that recurrence and its encoding both matter, that only its
encoding gains from attention that is longer at evaluation than in training, and that absolute encodings want the loss
of the last half of a segment alone.

Runs: every row of the table and, for the claim about half losses, the absolute encodings with the full loss; each is
evaluated at training's lengths ("init") and at a grid of attention lengths ("best").
Writes: the table, the rows' loss by attention length, and the learning curves with and without recurrence.
"""

from __future__ import annotations

from typing import Any

from experiments.arms import Arm, Setup, trainings
from experiments.jobs import Job
from experiments.outcomes import (
    DIGITS,
    Cell,
    Outcomes,
    Section,
    column,
    number,
    over_seeds,
    text,
    unit_in_words,
    unit_of,
)
from experiments.paper import TABLE_6
from txl_lightning.reporting.figures import line_figure

TITLE = "Table 6: recurrence, encoding, loss"
PAPER = (
    "On WikiText-103, with 128M parameters and a backpropagation length of 128, recurrence lowers the perplexity from "
    "29.59 to 27.02, the paper's encoding does better than Shaw's and the absolute ones, and only it gains when the "
    "attention at evaluation is longer than in training (27.02 to 26.77 at 500). Absolute encodings are listed with "
    "the half loss alone, because they only work well with it."
)
ROWS = [Arm(row.recurrence, row.encoding, row.loss) for row in TABLE_6]
FULL_LOSS = [Arm(False, "absolute", "full"), Arm(False, "al_rfou", "full")]
ARMS = [*ROWS, *FULL_LOSS]
ONE_SEED = [Arm(True, "relative", "half"), Arm(False, "shaw", "full")]  # no claim rests on them
ON, OFF = Arm(True), Arm(False)


def runs(arm: Arm, setup: Setup) -> list[Job]:
    """The trainings of a row."""
    return trainings(arm, setup, one_seed=arm in ONE_SEED)


def sweep(run: Job, setup: Setup) -> Job:
    """The evaluation of a run at a grid of attention lengths."""
    lengths = f"attention_lengths=[{','.join(map(str, setup.profile.attention_lengths))}]"
    words = (f"checkpoint={run.checkpoint}", *setup.profile.evaluate, lengths)
    return Job(f"{run.name}-lengths", "evaluate", words, run.arm, needs=(run.name,))


def jobs(setup: Setup) -> list[Job]:
    """Every run and its evaluation; the runs of one arm are neighbours."""
    found = [run for arm in ARMS for run in runs(arm, setup)]
    return [job for run in found for job in (run, sweep(run, setup))]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table and its figures."""
    found = {arm: runs(arm, setup) for arm in ARMS}
    sweeps = {
        arm: {job.seed: outcomes.result(sweep(job, setup), "evaluation.json")["test"]["sweep"] for job in found[arm]}
        for arm in ARMS
    }
    first = outcomes.metrics(found[ON][0])
    unit, level = unit_of(first), first["corpus"]["level"]
    tables = [
        table(sweeps, unit, setup),
        table(sweeps, unit, setup, FULL_LOSS),
    ]
    return {
        "id": "table_6",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{first['corpus']['name']}, {first['parameters']:,} parameters, {first['steps']:,} steps, segments of "
            f"{first['evaluation']['segment_len']}. Every row is scored on the same "
            f"{next(iter(sweeps[ON].values()))['init']['tokens']:,} tokens of the test split. Attention length: how "
            "many tokens a token attends to; of absolute encodings without recurrence the segment and the context in "
            "front of it, at most what training saw."
        ),
        "tables": tables,
        "figures": [
            lengths_figure(sweeps, unit_in_words(unit, level), outcomes),
            learning_curves({arm: found[arm] for arm in (ON, OFF)}, unit, level, outcomes),
        ],
        "samples": [],
    }


def table(sweeps: dict[Arm, dict[Any, Any]], unit: str, setup: Setup, arms: list[Arm] | None = None) -> dict[str, Any]:
    """The rows of the paper's table, or those that it leaves out."""
    digits = DIGITS[unit]
    columns = [
        column("arm", "", "label"),
        column("init", "init", "ours", unit),
        column("best", "best", "ours", unit),
        column("length", "attention length", "ours", "tokens"),
        column("beyond", "gain beyond training's length", "ours", unit),
    ]
    paper = {Arm(row.recurrence, row.encoding, row.loss): row for row in TABLE_6}
    if arms is None:
        columns += [
            column("paper_init", "init", "paper", "ppl"),
            column("paper_best", "best", "paper", "ppl"),
            column("paper_length", "attention length", "paper", "tokens"),
        ]
    rows = []
    for arm in ROWS if arms is None else arms:
        by_seed = sweeps[arm]
        row: dict[str, Any] = {
            "arm": text(arm.title),
            "init": over_seeds({seed: s["init"][unit] for seed, s in by_seed.items()}, digits),
            "best": over_seeds({seed: s["best"][unit] for seed, s in by_seed.items()}, digits),
            "beyond": beyond({seed: gain_beyond(s, unit) for seed, s in by_seed.items()}, digits),
            "length": over_seeds({seed: s["attention_length"] for seed, s in by_seed.items()}, 0),
        }
        if arms is None:
            theirs = paper[arm]
            row |= {
                "paper_init": number(theirs.ppl_init, 2),
                "paper_best": number(theirs.ppl_best, 2),
                "paper_length": number(theirs.attention_length, 0),
            }
        rows.append(row)
    some = next(iter(sweeps[ON].values()))
    return {
        "id": "table_6" if arms is None else "table_6_full_loss",
        "caption": TITLE if arms is None else "Absolute encodings with the full loss, which Table 6 leaves out",
        "columns": columns,
        "rows": rows,
        "notes": [
            f"Mean and standard error over seeds {', '.join(map(str, setup.profile.seeds))}; rows without an error "
            "have one seed.",
            f"Attention length: the shortest that is at most {some['tolerance']} {some['unit']} above the best.",
            "Gain beyond training's length: the best loss at attention lengths that training had, less the best at "
            "longer ones; none where the model cannot attend farther.",
        ],
    }


def gain_beyond(sweep: dict[str, Any], unit: str) -> float | None:
    """What attention that is longer than in training gains; None for a model that cannot have it."""
    trained = sweep["init"]["attention_length"]
    known = [sweep["init"][unit], *(row[unit] for row in sweep["lengths"] if row["attention_length"] <= trained)]
    longer = [row[unit] for row in sweep["lengths"] if row["attention_length"] > trained]
    return min(known) - min(longer) if longer else None


def beyond(gains: dict[Any, float | None], digits: int) -> Cell:
    """Over seeds, if there is any."""
    found = {seed: gain for seed, gain in gains.items() if gain is not None}
    return over_seeds(found, digits) if found else None


def lengths_figure(sweeps: dict[Arm, dict[Any, Any]], y_label: str, outcomes: Outcomes) -> dict[str, Any]:
    """Loss by attention length, of the first seed of six rows."""
    shown = [ON, Arm(True, "shaw"), OFF, Arm(False, "relative", "half"), Arm(False, "absolute", "half")]
    shown.append(Arm(False, "al_rfou", "half"))
    curves = {}
    for arm in shown:
        first = next(iter(sweeps[arm].values()))
        points = [*first["lengths"], first["init"]] if first["limit"] else first["lengths"]
        ordered = sorted({point["attention_length"]: point[first["unit"]] for point in points}.items())
        curves[arm.title] = [([length for length, _ in ordered], [value for _, value in ordered])]
    path = outcomes.figures / "table_6_attention_lengths.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    line_figure(
        path, curves, "attention length at evaluation (tokens)", f"test loss ({y_label})", "Loss by attention length"
    )
    return {
        "png": f"{outcomes.figures.name}/{path.name}",
        "svg": None,
        "caption": "Test loss by the attention length at evaluation, the same weights, first seed.",
        "alt": "Loss against attention length for six rows of Table 6",
    }


def learning_curves(runs_by_arm: dict[Arm, list[Job]], unit: str, level: str, outcomes: Outcomes) -> dict[str, Any]:
    """Validation loss against tokens with and without recurrence, a line a seed."""
    curves = {}
    for arm, found in runs_by_arm.items():
        validations = [outcomes.validation(job) for job in found]
        curves[arm.title] = [([r["tokens"] for r in rows], [r[f"val/{unit}"] for r in rows]) for rows in validations]
    path = outcomes.figures / "learning_curves.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    y_label = f"validation loss ({unit_in_words(unit, level)})"
    line_figure(path, curves, "training tokens", y_label, "With and without recurrence")
    return {
        "png": f"{outcomes.figures.name}/{path.name}",
        "svg": None,
        "caption": "Validation loss during training at training's lengths, a line a seed.",
        "alt": "Learning curves with and without recurrence",
    }
