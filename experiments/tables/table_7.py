"""Table 7: recurrence without long dependencies.

Paper: on One Billion Word, whose sentences are shuffled, perplexity 25.2 with recurrence and the relative encoding,
25.7 with Shaw's, 27.1 without recurrence (20 layers, about 0.3B parameters).
Runs: the three arms of the paper on One Billion Word, with the profiles that train its model and if the corpus is
present; otherwise the three arms on the lines of the profile's corpus in random order.
Writes: the table, at training's lengths, and the differences.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from experiments.arms import OFF, ON, Arm, OtherCorpus
from experiments.engine.jobs import RUNS, Job, Outcomes, at_hand, composed
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_7
from experiments.sections import DIGITS, Number, Section, Table, cell, label, ours, paper
from experiments.tables.differences import Comparisons, percent_of_loss
from experiments.tables.evaluations import (
    WINDOWS,
    Runs,
    evaluations,
    loss_cell,
    runs_of,
    trained_words,
    with_evaluations,
)
from experiments.tables.main_results import published_experiment
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.files import write_json

TITLE = "Table 7: recurrence without long dependencies"
ROWS = {Arm(row.recurrence, row.encoding): row for row in TABLE_7}
SHUFFLED = "shuffled lines"
SEED = 1  # of the shuffling
MAX_MEAN_LINE = 1000  # characters; a corpus with a longer mean line has no sentences on lines of their own
WORDS_PER_PIECE = 25


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_evaluations(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the differences."""
    runs = _runs(setup)
    found, unit = evaluations(runs, setup, outcomes), outcomes.unit
    corpus = next(iter(runs)).corpus
    on, off = (replace(arm, corpus=corpus) for arm in (ON, OFF))

    def loss(arm: Arm) -> Number:
        return loss_cell(found[replace(arm, corpus=corpus)], unit)

    table = Table.filled(
        "table_7",
        TITLE,
        {arm.key: arm for arm in ROWS if replace(arm, corpus=corpus) in runs},
        {
            label("arm"): lambda arm: arm.title,
            ours("loss", "test loss", unit): loss,
            ours("difference", "above the first row", unit): lambda arm: cell(
                loss(arm).value - loss(ON).value, DIGITS[unit]
            ),
            paper("paper", "test loss", "ppl"): lambda arm: cell(ROWS[arm].ppl, 1),
            paper("paper_difference", "above the first row", "ppl"): lambda arm: cell(ROWS[arm].ppl - ROWS[ON].ppl, 1),
        },
    )
    theirs = percent_of_loss(ROWS[OFF].ppl, ROWS[ON].ppl)
    key = "recurrence_helps_without_long_dependencies/init"
    return Section(
        id="table_7",
        title=TITLE,
        here=(
            f"{_corpus_in_words(setup)} Trained: {trained_words(runs, outcomes)} Test loss at training's lengths, "
            f"without recurrence in {WINDOWS}."
        ),
        tables=(table,),
        differences=(Comparisons(found, outcomes).losses(key, on, off, "init", theirs),),
    )


def _corpus_in_words(setup: Setup) -> str:
    if one_billion_word(setup):
        return "The paper's corpus, whose sentences are in random order."
    lines = "The lines of the corpus in random order, blank ones left out, so that no line helps to predict"
    missing = " One Billion Word, the paper's corpus, is not used here." if setup.profile.table_7 else ""
    return f"{lines} the next.{missing}"


def _runs(setup: Setup) -> Runs:
    corpus = one_billion_word(setup) or shuffled_lines(setup)
    return runs_of((replace(arm, corpus=corpus) for arm in ROWS), setup)


def one_billion_word(setup: Setup) -> OtherCorpus | None:
    """Return the corpus and the model of the paper; None if the profile has none or the corpus is not here."""
    if setup.profile.table_7 is None:
        return None
    data = composed(published_experiment(setup.profile.table_7, setup)).data
    own = setup.config.data
    if data.level != own.level or not at_hand(data):
        return None
    words = (f"experiment=paper/{setup.profile.table_7}", *setup.profile.main_overrides)
    return OtherCorpus("One Billion Word", words, recipe=True)


def shuffled_lines(setup: Setup) -> OtherCorpus:
    """Return the user's corpus with the lines of each split shuffled and blank lines left out.

    The corpus is written once, as one file in the report's folder named after the checksum of the original, with the
    sizes of its splits in a JSON file beside it.
    """
    data = setup.config.data
    unknown = OtherCorpus(SHUFFLED, ("data=file", "data.path=shuffled.txt", f"data.level={data.level}"))
    if setup.planning and not at_hand(data):
        return unknown
    corpus = load_corpus(data)
    level = corpus.vocabulary.level
    whole = setup.directory / "corpora" / f"shuffled-{corpus.checksum[:12]}.txt"
    sizes = _sizes(whole)
    if setup.planning and sizes is None:
        return unknown
    if sizes is None:
        parts = [shuffle(corpus.vocabulary.decode(corpus.splits[split].tolist()), split) for split in SPLITS]
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(b"".join(parts))
        sizes = [len(part) for part in parts]
        write_json(whole.with_suffix(".json"), sizes)
    fractions = ",".join(repr(size / sum(sizes)) for size in sizes)
    path = f"{RUNS}/../{whole.parent.name}/{whole.name}"
    words = ["data=file", f"data.path={path}", f"data.level={level}", f"data.fractions=[{fractions}]"]
    return OtherCorpus(SHUFFLED, (*words, *[f"data.vocab_size={len(corpus.vocabulary)}"] * (level == "bpe")))


def _sizes(whole: Path) -> list[int] | None:
    """Read the sizes of the splits, written last; None if the text is not there or may be incomplete."""
    try:
        sizes: list[int] = json.loads(whole.with_suffix(".json").read_text())
        return sizes if sum(sizes) == whole.stat().st_size else None
    except (OSError, ValueError):
        return None


def shuffle(text: str, split: str) -> bytes:
    """Return the lines of a text in an order that depends on the split's name only."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(text) > MAX_MEAN_LINE * len(lines):  # a corpus without lines, such as text8: shuffle pieces of words
        words = text.split(" ")
        lines = [" ".join(words[i : i + WORDS_PER_PIECE]) for i in range(0, len(words), WORDS_PER_PIECE)]
    random.Random(f"{SEED} {split}").shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()
