"""Tables 1 to 5: the main results, for the corpora on this machine.

Paper: Transformer-XL is better than recurrent and vanilla Transformer models of its size on five corpora.
Runs: arms of Tables 6 and 8 side by side, and dynamic evaluation (Krause et al. 2019) of the first; with the larger
profiles also the published models (`conf/experiment/paper`) whose corpora are there.
Writes: a table of our arms, and each of the paper's tables that has a published model that was run.
"""

from __future__ import annotations

from typing import Any

from experiments.dynamic_evaluation import DYNAMIC
from experiments.engine.jobs import Job, Outcomes, at_hand, composed, unit_of
from experiments.engine.profiles import Setup
from experiments.paper import MAIN_RESULTS, ResultRow
from experiments.report.sections import (
    DIGITS,
    Cell,
    Section,
    Table,
    cell,
    decimal,
    interval,
    label,
    ours,
    paper,
)
from experiments.tables.arms import (
    PLACES,
    Arm,
    Variant,
    devices_for,
    in_precision_of_training,
    kept,
    training,
    trainings,
)
from experiments.tables.length_sweep import WINDOWS, Evaluations, evaluations, loss_cell, with_sweeps
from txl_lightning.config.schemas import DataConfig
from txl_lightning.measure.scoring.standard_errors import NORMAL_95

TITLE = "Tables 1 to 5: main results"
PAPER = (
    "Test perplexity 24.0 (151M parameters) and 18.3 (257M) on WikiText-103, 23.5 and 21.8 on One Billion Word, 54.52 "
    "on Penn Treebank; 1.06 (41M), 1.03 (88M) and 0.99 (277M) bits per character on enwik8, 1.08 on text8."
)
ARMS = {
    Arm(): "Transformer-XL",
    Arm(False): "Transformer without recurrence, relative encoding",
    Arm(False, "al_rfou", "half"): "Transformer, Al-Rfou's encoding, half loss",
    Arm(baseline="qrnn"): "QRNN",
    Arm(baseline="lstm"): "LSTM",
}
LEARNING = Arm(variant=Variant("dynamic evaluation", lambda config: ()))  # names a row: the run is that of Arm()
TITLES = {**ARMS, LEARNING: "Transformer-XL, dynamic evaluation"}
NEAREST_TABLE = {"bpc": 2, "ppl": 1}  # the paper's table whose corpus has tokens of the same kind
NEAREST_MODEL = {  # rows there of the same kind of model
    (2, Arm()): "Transformer-XL 12 layers",
    (2, Arm(False, "al_rfou", "half")): "Al-Rfou 12 layers",
    (1, Arm()): "Transformer-XL standard",
    (1, Arm(baseline="qrnn")): "QRNN",
    (1, Arm(baseline="lstm")): "LSTM",
}
PUBLISHED = {  # files of conf/experiment/paper with table and row; none is published for Penn Treebank
    "wt103_base": (1, "Transformer-XL standard"),
    "wt103_large": (1, "Transformer-XL large"),
    "enwik8_base": (2, "Transformer-XL 12 layers"),
    "enwik8_18l": (2, "Transformer-XL 18 layers"),
    "enwik8_large": (2, "Transformer-XL 24 layers"),
    "text8_base": (3, "Transformer-XL 12 layers"),
    "text8_large": (3, "Transformer-XL 24 layers"),
    "lm1b_base_paper": (4, "Transformer-XL base"),
    "lm1b_large": (4, "Transformer-XL large"),
}
STANDARD, LARGE = "wt103_base", "wt103_large"


def jobs(setup: Setup) -> list[Job]:
    """Return the runs of all tables."""
    return [*with_sweeps(_runs(setup), setup), *published_runs(setup).values(), dynamic_job(setup)]


def dynamic_job(setup: Setup) -> Job:
    """Return the dynamic evaluation of the first run, at rates chosen on validation."""
    run = training(Arm(), setup.profile.seeds[0], setup)
    given = in_precision_of_training(setup.profile.dynamic, setup)
    words = (f"checkpoint={run.checkpoint}", "splits=[test]", "dynamic.search=true", *given)
    return Job(f"dynamic-seed{run.seed}", "evaluate", words, LEARNING.title, needs=(run.name,))


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return our table, and the paper's tables that were run."""
    runs = _runs(setup)
    trained = {arm: outcomes.metrics(arm_runs[0]) for arm, arm_runs in runs.items()}
    published = {name: outcomes.metrics(run) for name, run in published_runs(setup).items()}
    missing = [name for name in setup.profile.main if name not in published]
    left_out = f" Not run, because their corpora are not here: {', '.join(missing)}." if missing else ""
    first = trained[Arm()]
    corpus = first["corpus"]
    return Section(
        id="main_results",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{corpus['name']}, {corpus['level']} level, {first['tokens']:,} tokens of training. Test "
            "loss of the weights with the best validation loss, at training's lengths; without recurrence in "
            f"{WINDOWS}. The paper's numbers are of the same kind of model on another corpus: compare their order only."
            " Dynamic evaluation learns from every segment once it is scored; the number beside ours is that of Krause "
            "et al. (2019) for the paper's largest model."
            f"{left_out}"
        ),
        tables=(
            _our_table(trained, evaluations(runs, setup, outcomes), _learned(setup, outcomes)),
            *(_paper_table(table, published) for table in sorted({PUBLISHED[name][0] for name in published})),
        ),
    )


def published_runs(setup: Setup) -> dict[str, Job]:
    """Return the published models of the profile whose corpus is the arms' own or is on this machine, by name."""
    found = {}
    for name in setup.profile.main:
        words = published_experiment(name, setup)
        config = composed(words)
        if setup.profile.devices > 1:
            words += (f"trainer.devices={devices_for(config, setup.profile)}",)
        if _is_own(config.data, setup) or at_hand(config.data):
            table, model = PUBLISHED[name]
            title = f"Table {table}: {model}"
            found[name] = Job(f"published-{name}", "train", (*words, "seed=1"), title, 1)
    return found


def published_experiment(name: str, setup: Setup) -> tuple[str, ...]:
    """Return the overrides of a published model, where the corpora are as the user says."""
    places = (word for word in setup.overrides if word.split("=")[0] in PLACES)
    return (f"experiment=paper/{name}", *setup.profile.main_overrides, *places)


def standard_run(setup: Setup) -> Job | None:
    """Return the run of WikiText-103's standard model (151M); None if the arms have another corpus."""
    return _on_own_corpus(setup).get(STANDARD)


def largest_run(setup: Setup) -> Job | None:
    """Return the run of the largest published model on WikiText-103; None if the arms have another corpus."""
    runs = _on_own_corpus(setup)
    return runs.get(LARGE) or runs.get(STANDARD)


def _on_own_corpus(setup: Setup) -> dict[str, Job]:
    return {name: run for name, run in published_runs(setup).items() if _is_own(composed(run.overrides).data, setup)}


def _is_own(data: DataConfig, setup: Setup) -> bool:
    own = setup.config.data
    return (own.name, own.level) == (data.name, data.level)


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    return {arm: trainings(arm, setup) for arm in kept(ARMS, setup)}


def _learned(setup: Setup, outcomes: Outcomes) -> dict[str, Any] | None:
    """Return `evaluation.json` of dynamic evaluation; None before it is finished."""
    job = dynamic_job(setup)
    return outcomes.result(job, "evaluation.json") if outcomes.has(job) else None


def _our_table(trained: dict[Arm, dict[str, Any]], found: Evaluations, learned: dict[str, Any] | None) -> Table:
    first = trained[Arm()]
    unit = unit_of(first)
    nearest = NEAREST_TABLE[unit]
    theirs = MAIN_RESULTS[nearest]
    rows = {arm: theirs.row(model) for arm in trained if (model := NEAREST_MODEL.get((nearest, arm)))}
    losses: dict[Arm, Cell] = {arm: loss_cell(found[arm], unit) for arm in trained}
    notes: tuple[str, ...] = ()
    if learned is not None:
        trained, rows = {**trained, LEARNING: first}, {**rows, LEARNING: DYNAMIC[nearest]}
        static, dynamic = learned["test"], learned["test"]["dynamic"]
        losses[LEARNING] = cell(dynamic[unit], DIGITS[unit])
        notes = (_note(static, dynamic, learned["dynamic"], unit),)
    return Table.filled(
        "main_results",
        f"Main results on {first['corpus']['name']}",
        {arm.key: arm for arm in trained},
        {
            label("arm"): lambda arm: TITLES[arm],
            ours("parameters", "parameters", "million"): lambda arm: cell(trained[arm]["parameters"] / 1e6, 2),
            ours("loss", "test loss", unit): lambda arm: losses[arm],
            paper("paper_parameters", f"parameters, {theirs.corpus}", "million"): lambda arm: (
                cell(rows[arm].parameters, 0) if arm in rows else None
            ),
            paper("paper", f"test loss, {theirs.corpus}", theirs.unit): lambda arm: (
                cell(rows[arm].result, 2) if arm in rows else None
            ),
        },
        notes,
    )


def _note(static: dict[str, Any], dynamic: dict[str, Any], rates: dict[str, Any], unit: str) -> str:
    """Compare dynamic evaluation with static evaluation of the same tokens."""
    below = dynamic["below_static"]
    gain, error, digits = below[unit], below["standard_error"][unit], DIGITS[unit]
    ends = "" if error is None else interval(gain - NORMAL_95 * error, gain + NORMAL_95 * error, digits)
    return (
        f"Dynamic evaluation is of the first seed, in one stream, on the first {dynamic['tokens']:,} tokens of test. "
        f"Static evaluation has {decimal(static[unit], digits)} {unit} there: dynamic is {decimal(gain, digits)} "
        f"below{ends and f', 95 % interval {ends}'}. Validation chose lr {rates['lr']:g} and decay {rates['decay']:g}."
    )


def _paper_table(table: int, published: dict[str, dict[str, Any]]) -> Table:
    theirs = MAIN_RESULTS[table]
    measured = {PUBLISHED[name][1]: metrics for name, metrics in published.items() if PUBLISHED[name][0] == table}
    unlisted = [ResultRow(model, None, None) for model in measured if model not in {row.model for row in theirs.rows}]
    titles = {row: row.model + (", fine-tuned" if row.finetuned else "") for row in (*theirs.rows, *unlisted)}
    losses = {
        row: measured[row.model][f"test/{theirs.unit}"] for row in titles if row.model in measured and not row.finetuned
    }

    def difference(row: ResultRow) -> Cell:
        return cell(losses[row] - row.result, 2) if row in losses and row.result is not None else None

    return Table.filled(
        f"table_{table}",
        f"Table {table}: {theirs.corpus}",
        {title: row for row, title in titles.items()},
        {
            label("arm"): lambda row: titles[row],
            ours("loss", "test loss", theirs.unit): lambda row: cell(losses.get(row), 2),
            ours("steps", "training", "steps"): lambda row: (
                cell(measured[row.model]["steps"], 0) if row in losses else None
            ),
            paper("paper", "test loss", theirs.unit): lambda row: cell(row.result, 2),
            ours("difference", "ours − paper", theirs.unit): difference,
        },
    )
