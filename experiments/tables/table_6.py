"""Table 6: recurrence, position encoding and loss, one cell of the ablation a row.

The paper found, on WikiText-103 with 128M parameters, that recurrence and its encoding both matter, that only its
encoding gains from attention that is longer at evaluation than in training, and that absolute encodings want the loss
of the last half of a segment alone.

Runs: every row of the table and, for the claim about half losses, the absolute encodings with the full loss; each is
evaluated at training's lengths ("init") and at a grid of attention lengths ("best").
Writes: the table, the rows' loss by attention length, and the learning curves with and without recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_6
from experiments.report.cells import DIGITS, Cell, Section, column, number, over_seeds, text, unit_in_words, unit_of
from experiments.tables.arms import Arm, scored_in, trainings
from txl_lightning.reporting.canvas import line_figure

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


@dataclass(frozen=True)
class Measured:
    """A run at all attention lengths.

    Args:
        init: test loss as in training; with the half loss and no recurrence, of the half that was trained on.
        trained: the attention length of training.
        lengths: test loss by attention length.
        tolerance: how near to the best counts as reaching it.
        tokens: that were scored.
        limit: the longest attention that the model can have; None for any.
    """

    init: float
    trained: int
    lengths: dict[int, float]
    tolerance: float
    tokens: int
    limit: int | None

    @property
    def best(self) -> float:
        """The lowest of all."""
        return min([self.init, *self.lengths.values()])

    @property
    def attention_length(self) -> int:
        """The shortest that reaches the best."""
        points = [(self.trained, self.init), *self.lengths.items()]
        return min(length for length, loss in points if loss <= self.best + self.tolerance)

    @property
    def beyond(self) -> float | None:
        """What attention that is longer than in training gains; None for a model that cannot have it."""
        known = [self.init, *(loss for length, loss in self.lengths.items() if length <= self.trained)]
        longer = [loss for length, loss in self.lengths.items() if length > self.trained]
        return min(known) - min(longer) if longer else None


def sweep(run: Job, setup: Setup) -> Job:
    """The evaluation of a run at a grid of attention lengths."""
    config = composed(run.overrides)
    lengths = f"attention_lengths=[{','.join(map(str, setup.profile.attention_lengths))}]"
    words = [f"checkpoint={run.checkpoint}", *setup.profile.evaluate, lengths]
    if config.evaluation.ext_len and config.encoding.name in ("relative", "shaw"):  # memory instead, in whole segments
        segment_len = config.data.segment_len
        whole = (word.removeprefix("evaluation.") for word in scored_in(segment_len, config))
        words += ["ext_len=0", *whole]
    return Job(f"{run.name}-lengths", "evaluate", tuple(words), run.arm, needs=(run.name,))


def measured(run: Job, setup: Setup, outcomes: Outcomes) -> Measured:
    """What the run and its evaluation left."""
    metrics = outcomes.metrics(run)
    found = outcomes.result(sweep(run, setup), "evaluation.json")["test"]
    swept = found["sweep"]
    return Measured(
        init=metrics[f"test/{swept['unit']}"],
        trained=swept["init"]["attention_length"],
        lengths={row["attention_length"]: row[swept["unit"]] for row in swept["lengths"]},
        tolerance=swept["tolerance"],
        tokens=found["tokens"],
        limit=swept["limit"],
    )


def jobs(setup: Setup) -> list[Job]:
    """Every run and its evaluation; the runs of one arm are neighbours."""
    found = [run for arm in ARMS for run in runs(arm, setup)]
    return [job for run in found for job in (run, sweep(run, setup))]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table and its figures."""
    found = {arm: runs(arm, setup) for arm in ARMS}
    by_arm = {arm: {run.seed: measured(run, setup, outcomes) for run in found[arm]} for arm in ARMS}
    first = outcomes.metrics(found[ON][0])
    unit, level = unit_of(first), first["corpus"]["level"]
    return {
        "id": "table_6",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{first['corpus']['name']}, {first['parameters']:,} parameters, {first['steps']:,} steps, segments of "
            f"{first['evaluation']['segment_len']}. Every row is scored on the same "
            f"{next(iter(by_arm[ON].values())).tokens:,} tokens of the test split. Attention length: how "
            "many tokens a token attends to; of absolute encodings without recurrence the segment and the context in "
            "front of it, at most what training saw. With the half loss and no recurrence, init is the half that was "
            "trained on."
        ),
        "tables": [table(by_arm, unit), full_loss_table(by_arm, unit)],
        "figures": [
            lengths_figure(by_arm, unit_in_words(unit, level), outcomes),
            learning_curves({arm: found[arm] for arm in (ON, OFF)}, unit, level, outcomes),
        ],
    }


def table(by_arm: dict[Arm, dict[Any, Measured]], unit: str) -> dict[str, Any]:
    """The rows of the paper's table."""
    rows = [
        {
            "arm": text(arm.title),
            **cells(by_arm[arm], unit),
            "beyond": beyond(by_arm[arm], unit),
            "paper_init": number(theirs.ppl_init, 2),
            "paper_best": number(theirs.ppl_best, 2),
            "paper_length": number(theirs.attention_length, 0),
        }
        for arm, theirs in zip(ROWS, TABLE_6, strict=True)
    ]
    return {
        "id": "table_6",
        "caption": TITLE,
        "columns": [
            *columns(unit),
            column("beyond", "gain beyond training's length", "ours", unit),
            column("paper_init", "init", "paper", "ppl"),
            column("paper_best", "best", "paper", "ppl"),
            column("paper_length", "attention length", "paper", "tokens"),
        ],
        "rows": rows,
        "notes": [
            reached(by_arm, unit),
            "Gain beyond training's length: the best loss at attention lengths that training had, less the best at "
            "longer ones; none where the model cannot attend farther.",
        ],
    }


def full_loss_table(by_arm: dict[Arm, dict[Any, Measured]], unit: str) -> dict[str, Any]:
    """The rows that the paper leaves out."""
    return {
        "id": "table_6_full_loss",
        "caption": "Absolute encodings with the full loss, which Table 6 leaves out",
        "columns": columns(unit),
        "rows": [{"arm": text(arm.title), **cells(by_arm[arm], unit)} for arm in FULL_LOSS],
        "notes": [reached(by_arm, unit)],
    }


def columns(unit: str) -> list[dict[str, Any]]:
    """Ours in both tables."""
    return [
        column("arm", "", "label"),
        column("init", "init", "ours", unit),
        column("best", "best", "ours", unit),
        column("length", "attention length", "ours", "tokens"),
    ]


def cells(by_seed: dict[Any, Measured], unit: str) -> dict[str, Any]:
    """Ours in both tables, and in Table 10."""
    return {
        "init": over_seeds({seed: run.init for seed, run in by_seed.items()}, DIGITS[unit]),
        "best": over_seeds({seed: run.best for seed, run in by_seed.items()}, DIGITS[unit]),
        "length": over_seeds({seed: run.attention_length for seed, run in by_seed.items()}, 0),
    }


def reached(by_arm: dict[Arm, dict[Any, Measured]], unit: str) -> str:
    """What the attention length of a row is."""
    tolerance = next(iter(by_arm[ON].values())).tolerance
    return f"Attention length: the shortest that is at most {tolerance} {unit} above the best."


def beyond(by_seed: dict[Any, Measured], unit: str) -> Cell:
    """The gain of longer attention, if there is any to have."""
    found = {seed: run.beyond for seed, run in by_seed.items() if run.beyond is not None}
    return over_seeds(found, DIGITS[unit]) if found else None


def lengths_figure(by_arm: dict[Arm, dict[Any, Measured]], y_label: str, outcomes: Outcomes) -> dict[str, Any]:
    """Loss by attention length, of the first seed of six rows."""
    shown = [ON, Arm(True, "shaw"), OFF, Arm(False, "relative", "half"), Arm(False, "absolute", "half")]
    shown.append(Arm(False, "al_rfou", "half"))
    curves = {}
    for arm in shown:
        first = next(iter(by_arm[arm].values()))
        points = sorted({**first.lengths, **({first.trained: first.init} if first.limit else {})}.items())
        curves[arm.title] = [([length for length, _ in points], [loss for _, loss in points])]
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
