"""Tables 1 to 5: the main results, for the corpora on this machine.

Paper: Transformer-XL is better than recurrent and vanilla Transformer models of its size on five corpora.
Runs: arms of Tables 6 and 8 side by side; with the larger profiles also the published models
(`conf/experiment/paper`) whose corpora are there.
Writes: a table of our arms, and each of the paper's tables that has a published model that was run.
"""

from __future__ import annotations

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes, TrainingResult
from experiments.engine.setup import Setup
from experiments.paper import MAIN_RESULTS
from experiments.report.cells import Text, number
from experiments.report.sections import Row, Section, Table, label, ours, paper
from experiments.tables.arms import Arm, kept, trainings
from experiments.tables.shared.length_sweep import WINDOWS, SweepsBySeed, cells, sweeps_by_seed, with_sweeps
from experiments.tables.shared.published_models import PUBLISHED, published_runs

TITLE = "Tables 1 to 5: main results"
PAPER = (
    "Test perplexity 24.0 (151M parameters) and 18.3 (257M) on WikiText-103, 23.5 and 21.8 on One Billion Word, 54.52 "
    "on Penn Treebank; 1.06 (41M), 1.03 (88M) and 0.99 (277M) bits per character on enwik8, 1.08 on text8."
)
ARMS = {
    "Transformer-XL": Arm(),
    "Transformer without recurrence, relative encoding": Arm(False),
    "Transformer, Al-Rfou's encoding, half loss": Arm(False, "al_rfou", "half"),
    "QRNN": Arm(baseline="qrnn"),
    "LSTM": Arm(baseline="lstm"),
}
NEAREST_TABLE = {"bpc": 2, "ppl": 1}  # the paper's table whose corpus has tokens of the same kind
NEAREST_MODEL = {  # rows there of the same kind of model
    (2, Arm()): "Transformer-XL 12 layers",
    (2, Arm(False, "al_rfou", "half")): "Al-Rfou 12 layers",
    (1, Arm()): "Transformer-XL standard",
    (1, Arm(baseline="qrnn")): "QRNN",
    (1, Arm(baseline="lstm")): "LSTM",
}


def jobs(setup: Setup) -> list[Job]:
    """Return the runs of all tables."""
    own = [job for arm in _arms(setup).values() for job in with_sweeps(arm, _runs(arm, setup), setup)]
    return [*own, *published_runs(setup).values()]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return our table, and the paper's tables that were run."""
    arms = _arms(setup)
    sweeps = {arm: sweeps_by_seed(arm, _runs(arm, setup), setup, outcomes) for arm in arms.values()}
    trained = {arm: outcomes.training(_runs(arm, setup)[0]) for arm in arms.values()}
    published = {name: outcomes.training(run) for name, run in published_runs(setup).items()}
    missing = [name for name in setup.profile.main if name not in published]
    left_out = f" Not run, because their corpora are not here: {', '.join(missing)}." if missing else ""
    first = trained[Arm()]
    return Section(
        id="main_results",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{first.corpus}, {first.level} level, {first.tokens:,} tokens of training. Test loss of the weights with "
            "the best validation loss, at training's lengths; without recurrence in "
            f"{WINDOWS}. The paper's numbers are of the same kind of model on another corpus: compare their order only."
            f"{left_out}"
        ),
        tables=(
            _our_table(arms, trained, sweeps),
            *(_paper_table(number_, published) for number_ in sorted({PUBLISHED[name][0] for name in published})),
        ),
    )


def _arms(setup: Setup) -> dict[str, Arm]:
    return {title: arm for title, arm in ARMS.items() if kept([arm], setup)}


def _runs(arm: Arm, setup: Setup) -> list[Job]:
    return trainings(arm, setup, compared=arm.baseline is None)


def _our_table(arms: dict[str, Arm], trained: dict[Arm, TrainingResult], sweeps: dict[Arm, SweepsBySeed]) -> Table:
    first = trained[Arm()]
    nearest = NEAREST_TABLE[first.unit]
    theirs = MAIN_RESULTS[nearest]
    rows: dict[str, Row] = {}
    for title, arm in arms.items():
        model = NEAREST_MODEL.get((nearest, arm))
        row = theirs.row(model) if model else None
        rows[arm.key] = {
            "arm": Text(title),
            "parameters": number(trained[arm].parameters / 1e6, 2),
            "loss": cells(sweeps[arm], first.unit)["init"],
            "paper_parameters": number(row.parameters if row else None, 0),
            "paper": number(row.result if row else None, 2),
        }
    return Table(
        id="main_results",
        caption=f"Main results on {first.corpus}",
        columns=(
            label("arm"),
            ours("parameters", "parameters", "million"),
            ours("loss", "test loss", first.unit),
            paper("paper_parameters", f"parameters, {theirs.corpus}", "million"),
            paper("paper", f"test loss, {theirs.corpus}", theirs.unit),
        ),
        rows=rows,
    )


def _paper_table(table: int, published: dict[str, TrainingResult]) -> Table:
    theirs = MAIN_RESULTS[table]
    measured = {PUBLISHED[name][1]: result for name, result in published.items() if PUBLISHED[name][0] == table}
    listed = [(row.model, row.finetuned, row.result) for row in theirs.rows]
    unlisted = [(model, False, None) for model in measured if model not in {row.model for row in theirs.rows}]
    rows: dict[str, Row] = {}
    for model, finetuned, paper_loss in (*listed, *unlisted):
        result = None if finetuned else measured.get(model)
        loss = result.loss() if result else None
        title = model + (", fine-tuned" if finetuned else "")
        rows[title] = {
            "arm": Text(title),
            "loss": number(loss, 2),
            "steps": number(result.steps if result else None, 0),
            "paper": number(paper_loss, 2),
            "difference": number(None if loss is None or paper_loss is None else loss - paper_loss, 2),
        }
    return Table(
        id=f"table_{table}",
        caption=f"Table {table}: {theirs.corpus}",
        columns=(
            label("arm"),
            ours("loss", "test loss", theirs.unit),
            ours("steps", "training", "steps"),
            paper("paper", "test loss", theirs.unit),
            ours("difference", "ours − paper", theirs.unit),
        ),
        rows=rows,
    )
