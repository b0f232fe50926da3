"""Table 7: recurrence without long dependencies.

Paper: on One Billion Word, whose sentences are shuffled, perplexity 25.2 with recurrence and the relative encoding,
25.7 with Shaw's, 27.1 without recurrence (20 layers, about 0.3B parameters).
Runs: the three arms on the profile's corpus with its lines in random order (the paper's: experiment=paper/table7).
Writes: the table, at training's lengths, and the differences.
"""

from __future__ import annotations

import random
from dataclasses import replace

from experiments.arms import OFF, ON, Arm
from experiments.engine.jobs import RUNS, Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_7
from experiments.sections import Cell, Column, Section, Table, cell
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import (
    WINDOWS,
    Evaluations,
    Runs,
    loss_cell,
    read_evaluations,
    runs_of,
    with_evaluations,
)
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.files import new_folder

TITLE = "Table 7: recurrence without long dependencies"
ROWS = {Arm(recurrence, encoding): ppl for (recurrence, encoding), ppl in TABLE_7.items()}
SEED = 1  # for shuffling
MAX_MEAN_LINE = (
    1000  # characters; a corpus with longer lines has no sentences on lines of their own
)
WORDS_PER_PIECE = 25


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the differences."""
    runs = _runs(setup)
    evaluated = read_evaluations(runs, outcomes)
    corpus = next(iter(runs)).corpus
    on = replace(ON, corpus=corpus)
    off = replace(OFF, corpus=corpus)
    in_paper = percent_of_loss(ROWS[OFF], ROWS[ON])
    key = "recurrence_helps_without_long_dependencies/init"
    comparisons = Comparisons(evaluated, outcomes)
    return Section(
        id="table_7",
        title=TITLE,
        here=(
            "The lines of the corpus in random order, blank ones left out, so that no line helps "
            f"to predict the next. Test loss at training's lengths, without recurrence in {WINDOWS}."
        ),
        tables=[_table(evaluated, runs, outcomes.unit)],
        differences=[comparisons.losses(key, on, off, "init", in_paper)],
    )


def _table(evaluated: Evaluations, runs: Runs, unit: str) -> Table:
    columns = [
        Column("label", "arm"),
        Column("ours", "loss", "test loss", unit),
        Column("paper", "paper", "test loss", "ppl"),
    ]
    rows = {}
    for shuffled in runs:
        arm = replace(shuffled, corpus=())
        cells: dict[str, Cell] = {
            "arm": arm.title,
            "paper": cell(ROWS[arm], 1),
        }
        if shuffled in evaluated:
            cells["loss"] = loss_cell(evaluated[shuffled], unit)
        rows[arm.key] = cells
    return Table("table_7", TITLE, columns, rows)


def _runs(setup: Setup) -> Runs:
    corpus = shuffled_lines(setup)
    return runs_of([replace(arm, corpus=corpus) for arm in ROWS], setup)


def shuffled_lines(setup: Setup) -> tuple[str, ...]:
    """Return overrides for the user's corpus with each split's lines shuffled and blank lines left out.

    The corpus is written once, into the report's folder, named after the original's checksum.
    """
    data = setup.config.data
    if setup.planning:
        return ("data=file", "data.path=shuffled", f"data.level={data.level}")
    corpus = load_corpus(data)
    path = setup.directory / "corpora" / f"shuffled-{corpus.checksum[:12]}"
    if not path.is_dir():
        with new_folder(path) as folder:
            for split in SPLITS:
                text = corpus.vocabulary.decode(corpus.splits[split].tolist())
                (folder / f"{split}.txt").write_bytes(shuffle(text, split))
    level = corpus.vocabulary.level
    words = [
        "data=file",
        f"data.path={RUNS}/../corpora/{path.name}",
        f"data.level={level}",
    ]
    if level == "bpe":
        words.append(f"data.vocab_size={len(corpus.vocabulary)}")
    return tuple(words)


def shuffle(text: str, split: str) -> bytes:
    """Return a text's lines in an order that depends on the split's name only."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(text) > MAX_MEAN_LINE * len(lines):  # no lines, as in text8: shuffle pieces of words
        words = text.split(" ")
        pieces = range(0, len(words), WORDS_PER_PIECE)
        lines = [" ".join(words[first : first + WORDS_PER_PIECE]) for first in pieces]
    random.Random(f"{SEED} {split}").shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()
