"""Table 7: recurrence helps even where there is nothing to carry, because segments cut sentences apart.

The paper found, on One Billion Word, whose sentences are shuffled: perplexity 25.2 with recurrence and its encoding,
25.7 with Shaw's, 27.1 without recurrence (20 layers, about 0.3B parameters).
Runs: the three arms on the lines of the corpus in a random order.
Writes: the table, at training's lengths.
"""

from __future__ import annotations

from typing import Any

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_7
from experiments.report.cells import DIGITS, Section, column, number, over_seeds, text, unit_of
from experiments.tables.arms import Arm, OtherCorpus, trainings
from experiments.tables.shuffled import shuffled_lines

TITLE = "Table 7: recurrence without long dependencies"
PAPER = (
    "On One Billion Word, whose sentences are shuffled, there is no long dependency to carry. Recurrence still lowers "
    "the perplexity from 27.1 to 25.2: without it a segment begins in the middle of a sentence that it has not seen."
)
ARMS = [(True, "relative"), (True, "shaw"), (False, "relative")]
ONE_SEED = (True, "shaw")


def runs(setup: Setup, corpus: OtherCorpus | None = None) -> dict[tuple[bool, str], list[Job]]:
    """The trainings by recurrence and encoding."""
    corpus = corpus or shuffled_lines(setup)
    return {arm: trainings(Arm(*arm, corpus=corpus), setup, one_seed=arm == ONE_SEED) for arm in ARMS}


def jobs(setup: Setup) -> list[Job]:
    """Every run."""
    return [run for found in runs(setup).values() for run in found]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table."""
    metrics = {arm: {run.seed: outcomes.metrics(run) for run in found} for arm, found in runs(setup).items()}
    first = next(iter(metrics[ARMS[0]].values()))
    unit = unit_of(first)
    paper = {(row.recurrence, row.encoding): row.ppl for row in TABLE_7}
    reference = over_seeds({seed: m[f"test/{unit}"] for seed, m in metrics[ARMS[0]].items()}, DIGITS[unit])
    assert reference is not None
    rows: list[dict[str, Any]] = []
    for arm in ARMS:
        ours = over_seeds({seed: m[f"test/{unit}"] for seed, m in metrics[arm].items()}, DIGITS[unit])
        assert ours is not None
        rows.append(
            {
                "arm": text(Arm(*arm).title),
                "loss": ours,
                "difference": number(ours["value"] - reference["value"], DIGITS[unit]),
                "paper": number(paper[arm], 1),
                "paper_difference": number(paper[arm] - paper[ARMS[0]], 1),
            }
        )
    return {
        "id": "table_7",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"The lines of the corpus in a random order ({first['corpus']['name']}), blank ones left out: what a line "
            f"says tells nothing of the next one. {first['parameters']:,} parameters, {first['steps']:,} steps; test "
            "loss at training's lengths."
        ),
        "tables": [
            {
                "id": "table_7",
                "caption": TITLE,
                "columns": [
                    column("arm", "", "label"),
                    column("loss", "test loss", "ours", unit),
                    column("difference", "above the first row", "ours", unit),
                    column("paper", "test loss", "paper", "ppl"),
                    column("paper_difference", "above the first row", "paper", "ppl"),
                ],
                "rows": rows,
            }
        ],
    }
