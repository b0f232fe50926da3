"""Table 7: recurrence without long dependencies.

Paper: on One Billion Word, whose sentences are shuffled, perplexity 25.2 with recurrence and the relative encoding,
25.7 with Shaw's, 27.1 without recurrence (20 layers, about 0.3B parameters).
Runs: the three arms of the paper on One Billion Word, with the profiles that train its model and if the corpus is
present; otherwise the three arms on the lines of the profile's corpus in random order.
Writes: the table, at training's lengths, and the differences.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_7
from experiments.report.cells import DIGITS, Number, Text, number
from experiments.report.sections import Section, Table, label, ours, paper
from experiments.tables.arms import Arm, kept, trainings
from experiments.tables.shared.comparisons import comparisons_table, percent_of_loss
from experiments.tables.shared.length_sweep import OFF, ON, WINDOWS, cells, sweeps_by_seed, with_sweeps
from experiments.tables.shared.published_models import one_billion_word
from experiments.tables.shared.scored_losses import compare, scored_runs
from experiments.tables.shared.shuffled_lines import shuffled_lines

TITLE = "Table 7: recurrence without long dependencies"
PAPER = (
    "On One Billion Word, whose sentences are shuffled, there is no long dependency to carry. Recurrence still lowers "
    "the perplexity from 27.1 to 25.2: without it a segment begins in the middle of a sentence that it has not seen."
)
ROWS = {Arm(row.recurrence, row.encoding): row for row in TABLE_7}
NOT_COMPARED = Arm(True, "shaw")  # by any claim
CLAIM = "recurrence_helps_without_long_dependencies"


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return [job for arm, runs in _runs(setup).items() for job in with_sweeps(arm, runs, setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the differences."""
    runs = _runs(setup)
    sweeps = {arm: sweeps_by_seed(arm, arm_runs, setup, outcomes) for arm, arm_runs in runs.items()}
    first = outcomes.training(next(iter(runs.values()))[0])
    losses = {arm: cells(by_seed, first.unit)["init"] for arm, by_seed in sweeps.items()}
    rows = {replace(arm, corpus=None): arm for arm in runs}
    reference = losses[rows[ON]]
    least = reference.value if isinstance(reference, Number) else 0.0
    table = Table(
        id="table_7",
        caption=TITLE,
        columns=(
            label("arm"),
            ours("loss", "test loss", first.unit),
            ours("difference", "above the first row", first.unit),
            paper("paper", "test loss", "ppl"),
            paper("paper_difference", "above the first row", "ppl"),
        ),
        rows={
            plain.key: {
                "arm": Text(plain.title),
                "loss": loss,
                "difference": number(loss.value - least, DIGITS[first.unit]) if isinstance(loss, Number) else None,
                "paper": number(ROWS[plain].ppl, 1),
                "paper_difference": number(ROWS[plain].ppl - ROWS[ON].ppl, 1),
            }
            for plain, loss in ((plain, losses[arm]) for plain, arm in rows.items())
        },
    )
    by_block = scored_runs(runs, setup, outcomes)
    theirs = percent_of_loss(ROWS[OFF].ppl, ROWS[ON].ppl)
    found = [compare(f"{CLAIM}/init", rows[ON], rows[OFF], "init", by_block, outcomes, theirs)]
    return Section(
        id="table_7",
        title=TITLE,
        paper=PAPER,
        here=(
            f"{_corpus_in_words(first.corpus, setup)} {first.parameters:,} parameters, {first.steps:,} steps; test "
            f"loss at training's lengths, without recurrence in {WINDOWS}."
        ),
        tables=(table, comparisons_table("table_7", TITLE, first.unit, 3, found)),
    )


def _corpus_in_words(name: str, setup: Setup) -> str:
    if one_billion_word(setup):
        return f"The paper's corpus ({name}), whose sentences are in random order."
    lines = f"The lines of the corpus in random order ({name}), blank ones left out, so that no line helps to predict"
    missing = " One Billion Word, the paper's corpus, is not used here." if setup.profile.table_7 else ""
    return f"{lines} the next.{missing}"


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    corpus = one_billion_word(setup) or shuffled_lines(setup)
    arms = kept((replace(arm, corpus=corpus) for arm in ROWS), setup)
    return {arm: trainings(arm, setup, compared=replace(arm, corpus=None) != NOT_COMPARED) for arm in arms}
