"""Tables 1 to 5: the main results, for the corpora on this machine.

Paper: Transformer-XL is better than recurrent and vanilla Transformer models of its size on five corpora.
Runs: arms of Tables 6 and 8 side by side; with the larger profiles also the published models (`conf/experiment/paper`)
whose corpora are there.
Writes: a table of our arms, and each of the paper's tables that has a published model that was run.
"""

from __future__ import annotations

from typing import Any

from experiments.arms import OFF, ON, PLACES, Arm, devices
from experiments.engine.jobs import Job, Outcomes, at_hand, composed
from experiments.engine.profiles import Setup
from experiments.paper import MAIN_RESULTS, ResultRow
from experiments.sections import Cell, Section, Table, cell, label, ours, paper
from experiments.tables.evaluations import (
    WINDOWS,
    bits_a_byte,
    evaluations,
    loss_cell,
    runs_of,
    trained_words,
    with_evaluations,
)
from txl_lightning.config.schemas import DataConfig

TITLE = "Tables 1 to 5: main results"
ARMS = {
    ON: "Transformer-XL",
    OFF: "Transformer without recurrence, relative encoding",
    Arm(False, "al_rfou", "half"): "Transformer, Al-Rfou's encoding, half loss",
    Arm(baseline="qrnn"): "QRNN",
    Arm(baseline="lstm"): "LSTM",
}
NEAREST_TABLE = {"bpb": 2, "bpc": 2, "ppl": 1}  # the paper's table whose corpus has tokens of the same kind
NEAREST_MODEL = {  # rows there of the same kind of model
    (2, ON): "Transformer-XL 12 layers",
    (2, Arm(False, "al_rfou", "half")): "Al-Rfou 12 layers",
    (1, ON): "Transformer-XL standard",
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
    return [*with_evaluations(runs_of(ARMS, setup), setup), *published_runs(setup).values()]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return our table, and the paper's tables that were run."""
    found, runs = evaluations(runs_of(ARMS, setup), setup, outcomes), runs_of(ARMS, setup)
    planned = published_runs(setup)
    published = {name: outcomes.metrics(run) for name, run in planned.items() if outcomes.has(run)}
    nearest = NEAREST_TABLE[outcomes.unit]
    theirs = MAIN_RESULTS[nearest]
    rows = {arm: theirs.row(model) for arm in runs if (model := NEAREST_MODEL.get((nearest, arm)))}
    table = Table.filled(
        "main_results",
        "Main results of this run",
        {arm.key: arm for arm in runs},
        {
            label("arm"): lambda arm: ARMS[arm],
            ours("parameters", "parameters", "million"): lambda arm: cell(
                outcomes.first(runs[arm])["parameters"] / 1e6, 2
            ),
            ours("loss", "test loss", outcomes.unit): lambda arm: loss_cell(found[arm], outcomes.unit),
            **bits_a_byte(found),
            paper("paper_parameters", f"parameters, {theirs.corpus}", "million"): lambda arm: (
                cell(rows[arm].parameters, 0) if arm in rows else None
            ),
            paper("paper", f"test loss, {theirs.corpus}", theirs.unit): lambda arm: (
                cell(rows[arm].result, 2) if arm in rows else None
            ),
        },
    )
    return Section(
        id="main_results",
        title=TITLE,
        here=(
            f"{trained_words(runs, outcomes)} Test loss of the weights with the best validation loss, at training's "
            f"lengths; without recurrence in {WINDOWS}. The paper's numbers are of the same kind of model on another "
            "corpus: compare their order only."
        ),
        tables=(table, *(_paper_table(table, published) for table in sorted({PUBLISHED[name][0] for name in planned}))),
    )


def published_runs(setup: Setup) -> dict[str, Job]:
    """Return the published models of the profile whose corpus is the arms' own or is on this machine, by name."""
    found = {}
    for name in setup.profile.main:
        words = published_experiment(name, setup)
        config = composed(words)
        if _is_own(config.data, setup) or at_hand(config.data):
            table, model = PUBLISHED[name]
            words += (*devices(config, setup.profile), "seed=1")
            found[name] = Job(f"published-{name}", "train", words, f"Table {table}: {model}", 1)
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


def _paper_table(table: int, published: dict[str, dict[str, Any]]) -> Table:
    theirs = MAIN_RESULTS[table]
    measured = {PUBLISHED[name][1]: metrics for name, metrics in published.items() if PUBLISHED[name][0] == table}
    unlisted = [ResultRow(model, None, None) for model in measured if model not in {row.model for row in theirs.rows}]

    def found(row: ResultRow) -> dict[str, Any]:
        return {} if row.finetuned else measured.get(row.model, {})

    def difference(row: ResultRow) -> Cell:
        loss = found(row).get(f"test/{theirs.unit}")
        return cell(loss - row.result, 2) if loss is not None and row.result is not None else None

    return Table.filled(
        f"table_{table}",
        f"Table {table}: {theirs.corpus}",
        {row.model + (", fine-tuned" if row.finetuned else ""): row for row in (*theirs.rows, *unlisted)},
        {
            label("arm"): lambda row: row.model + (", fine-tuned" if row.finetuned else ""),
            ours("loss", "test loss", theirs.unit): lambda row: cell(found(row).get(f"test/{theirs.unit}"), 2),
            ours("steps", "training", "steps"): lambda row: cell(found(row).get("steps"), 0),
            paper("paper", "test loss", theirs.unit): lambda row: cell(row.result, 2),
            ours("difference", "ours − paper", theirs.unit): difference,
        },
    )
