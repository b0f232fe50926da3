"""Recurrence on prose: the two runs of the first claims on another text than program code.

Paper: Table 6 is of WikiText-103, articles of Wikipedia.
Runs: the profile's model with and without recurrence on the first of text8, enwik8 and the letters of Penn Treebank
that is on this machine; nothing otherwise, or if the profile's own text is one of these or of words.
Writes: the losses, and the differences of the first two claims.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.engine.jobs import Job, Outcomes, Pending, at_hand, composed
from experiments.engine.profiles import Setup
from experiments.paper import table_6
from experiments.report.sections import Section, Table, label
from experiments.tables.arms import Arm, OtherCorpus, kept, training
from experiments.tables.comparisons import compare, comparisons_table, percent_of_loss
from experiments.tables.length_sweep import OFF, ON, WINDOWS, evaluations, loss_columns, with_sweeps

TITLE = "Prose: recurrence on another text"
PAPER = (
    "The paper's Table 6 is of Wikipedia's articles: perplexity 27.02 with recurrence and 29.59 without at training's "
    "lengths, 26.77 and 29.02 at the best lengths."
)
TEXTS = (("text8",), ("enwik8",), ("ptb-char",), ("text8", "data.prefix=true"), ("enwik8", "data.prefix=true"))
MAX_TOKENS = 400_000  # of a split of text8 that are scored, out of five million


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation; none without a text."""
    return with_sweeps(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the losses and the differences."""
    text = prose(setup)
    if text is None:
        here = "No other prose at the level of bytes or characters is on this machine: text8, enwik8, Penn Treebank."
        return Section(id="prose", title=TITLE, paper=PAPER, here=here)
    runs = _runs(setup)
    found = evaluations(runs, setup, outcomes)
    on, off = (replace(arm, corpus=text) for arm in (ON, OFF))
    if not found:
        raise Pending(runs[on][0].name)
    table = Table.filled(
        "prose",
        TITLE,
        {arm.key: arm for arm in found},
        {label("arm"): lambda arm: arm.title, **loss_columns(found, outcomes.unit)},
    )
    theirs = [table_6(arm.recurrence, arm.encoding, arm.loss) for arm in (OFF, ON)]
    differences = [
        compare("prose/init", on, off, "init", found, outcomes, percent_of_loss(*(row.ppl_init for row in theirs))),
        compare("prose/best", on, off, "best", found, outcomes, percent_of_loss(*(row.ppl_best for row in theirs))),
    ]
    return Section(
        id="prose",
        title=TITLE,
        paper=PAPER,
        here=(
            f"The profile's model and training on {text.name}, scored on at most {MAX_TOKENS:,} tokens of each split; "
            f"without recurrence in {WINDOWS}."
        ),
        tables=(table, comparisons_table("prose", TITLE, outcomes.unit, 3, differences)),
    )


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    corpus = prose(setup)
    arms = kept((replace(arm, corpus=corpus) for arm in (ON, OFF)), setup) if corpus else []
    return {arm: [training(arm, seed, setup) for seed in setup.profile.seeds] for arm in arms}


def prose(setup: Setup) -> OtherCorpus | None:
    """Return the first of the texts that is on this machine; None if there is none, or the profile's own is prose."""
    own = setup.config.data
    if own.level not in ("byte", "char") or own.name in ("text8", "enwik8", "ptb"):
        return None
    for name, *options in TEXTS:
        words = (f"data={name}", *options)
        places = (word for word in setup.overrides if word.startswith(("data.root=", "data.cache_dir=")))
        if at_hand(composed((f"profile={setup.profile.name}", *places, *words)).data):
            return OtherCorpus(name, words, max_tokens=MAX_TOKENS)
    return None
