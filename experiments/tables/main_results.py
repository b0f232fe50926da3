"""Tables 1 to 5: the main results, for the corpora at hand.

The paper found Transformer-XL ahead of recurrent and of vanilla Transformer models of its size on five corpora.
Runs: on the corpus of the reproduction, Table 6's and Table 8's runs side by side; with the larger profiles also the
published models (`conf/experiment/paper`) whose corpora are there.
Writes: a table of ours, and one for each of the paper's tables that was run.
"""

from __future__ import annotations

from typing import Any

from experiments import paper
from experiments.engine.corpora import at_hand
from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.report.cells import DIGITS, Section, column, number, over_seeds, text, unit_of
from experiments.tables.arms import Arm, devices_for, trainings

TITLE = "Tables 1 to 5: main results"
PAPER = (
    "Test perplexity 24.0 (151M parameters) and 18.3 (257M) on WikiText-103, 23.5 and 21.8 on One Billion Word, 54.52 "
    "on Penn Treebank; 1.06 (41M), 1.03 (88M) and 0.99 (277M) bits per character on enwik8, 1.08 on text8."
)
ARMS = {
    "Transformer-XL": Arm(),
    "Transformer without recurrence, our encoding": Arm(False),
    "Transformer, Al-Rfou's encoding, half loss": Arm(False, "al_rfou", "half"),
    "QRNN": Arm(baseline="qrnn"),
    "LSTM": Arm(baseline="lstm"),
}
BASELINES = ("QRNN", "LSTM")
NEAREST = {  # the paper's rows of the same kind, on a corpus of the same level
    "bpc": {
        "Transformer-XL": (2, "Transformer-XL 12 layers"),
        "Transformer, Al-Rfou's encoding, half loss": (2, "Al-Rfou 12 layers"),
    },
    "ppl": {"Transformer-XL": (1, "Transformer-XL standard"), "QRNN": (1, "QRNN"), "LSTM": (1, "LSTM")},
}
TABLES = {1: paper.TABLE_1, 2: paper.TABLE_2, 3: paper.TABLE_3, 4: paper.TABLE_4, 5: paper.TABLE_5}
CORPORA = {1: "WikiText-103", 2: "enwik8", 3: "text8", 4: "One Billion Word", 5: "Penn Treebank"}
UNITS = {1: "ppl", 2: "bpc", 3: "bpc", 4: "ppl", 5: "ppl"}
PUBLISHED = {  # files of conf/experiment/paper and the row that each is; none is published for Penn Treebank
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


def runs(name: str, setup: Setup) -> list[Job]:
    """The trainings of one of our rows."""
    return trainings(ARMS[name], setup, one_seed=name in BASELINES)


def published(setup: Setup) -> dict[str, Job]:
    """The published models of the profile whose corpora are at hand."""
    places = tuple(word for word in setup.overrides if word.split("=")[0] in ("data.root", "data.cache_dir"))
    found = {}
    for name in setup.profile.main:
        words = (f"experiment=paper/{name}", *setup.profile.main_overrides, *places)
        config = composed(words)
        if setup.profile.devices > 1:
            words += (f"trainer.devices={devices_for(config, setup.profile)}",)
        if at_hand(config.data):
            number_, row = PUBLISHED[name]
            arm = f"Table {number_}: {row}"
            found[name] = Job(f"published-{name}", "train", (*words, "seed=1"), arm, 1, ("published", name))
    return found


def jobs(setup: Setup) -> list[Job]:
    """The runs of all tables."""
    return [*(run for name in ARMS for run in runs(name, setup)), *published(setup).values()]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Our table, and the paper's that were run."""
    first = outcomes.metrics(runs("Transformer-XL", setup)[0])
    by_table: dict[int, list[str]] = {}
    for name in published(setup):
        by_table.setdefault(PUBLISHED[name][0], []).append(name)
    missing = [name for name in setup.profile.main if name not in published(setup)]
    notes = f" Not at hand, so not run: the corpora of {', '.join(missing)}." if missing else ""
    return {
        "id": "main_results",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{first['corpus']['name']}, {first['corpus']['level']} level, {first['tokens']:,} tokens of training; "
            "test loss of the best validation at training's lengths. The paper's figures beside ours are those of the "
            f"same kind of model on another corpus: nothing to compare ours with but their order.{notes}"
        ),
        "tables": [ours(setup, outcomes), *(theirs(*item, setup, outcomes) for item in sorted(by_table.items()))],
    }


def ours(setup: Setup, outcomes: Outcomes) -> dict[str, Any]:
    """The models of the reproduction on its corpus."""
    metrics = {name: {run.seed: outcomes.metrics(run) for run in runs(name, setup)} for name in ARMS}
    unit = unit_of(next(iter(metrics["Transformer-XL"].values())))
    rows = []
    for name, by_seed in metrics.items():
        nearest = NEAREST[unit].get(name)
        row = paper.result(TABLES[nearest[0]], nearest[1]) if nearest else None
        rows.append(
            {
                "arm": text(name),
                "parameters": number(next(iter(by_seed.values()))["parameters"] / 1e6, 2),
                "loss": over_seeds({seed: m[f"test/{unit}"] for seed, m in by_seed.items()}, DIGITS[unit]),
                "paper_parameters": number(row.parameters, 0) if row else None,
                "paper": number(row.figure, 2) if row else None,
            }
        )
    table = 2 if unit == "bpc" else 1
    return {
        "id": "main_results",
        "caption": f"Main results on {next(iter(metrics['LSTM'].values()))['corpus']['name']}",
        "columns": [
            column("arm", "", "label"),
            column("parameters", "parameters", "ours", "million"),
            column("loss", "test loss", "ours", unit),
            column("paper_parameters", f"parameters, {CORPORA[table]}", "paper", "million"),
            column("paper", f"test loss, {CORPORA[table]}", "paper", UNITS[table]),
        ],
        "rows": rows,
    }


def theirs(table: int, names: list[str], setup: Setup, outcomes: Outcomes) -> dict[str, Any]:
    """One of the paper's tables with our runs of its models."""
    unit, found = UNITS[table], published(setup)
    measured = {PUBLISHED[name][1]: outcomes.metrics(found[name]) for name in names}
    listed = {(row.model, row.finetuned): row for row in TABLES[table]}
    keys = [*listed, *((model, False) for model in measured if (model, False) not in listed)]
    rows = []
    for model, finetuned in keys:
        row, metrics = listed.get((model, finetuned)), None if finetuned else measured.get(model)
        value = metrics[f"test/{unit}"] if metrics else None
        rows.append(
            {
                "arm": text(model + (", fine-tuned" if finetuned else "")),
                "loss": number(value, 2),
                "steps": number(metrics["steps"] if metrics else None, 0),
                "paper": number(row.figure if row else None, 2),
                "difference": number(value - row.figure if value is not None and row else None, 2),
            }
        )
    return {
        "id": f"table_{table}",
        "caption": f"Table {table}: {CORPORA[table]}",
        "columns": [
            column("arm", "", "label"),
            column("loss", "test loss", "ours", unit),
            column("steps", "training", "ours", "steps"),
            column("paper", "test loss", "paper", unit),
            column("difference", "ours − paper", "ours", unit),
        ],
        "rows": rows,
    }
