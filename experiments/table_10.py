"""Table 10: recurrence against longer segments that take the same memory.

The paper found, with the memory of a GPU held equal, 26.77 with recurrence and a backpropagation length of 128 against
27.98 without recurrence and 176 (half loss: 28.33 against 28.83 with 172).
Runs: the two arms without recurrence on longer segments; those with recurrence are Table 6's.
Writes: the table, in Table 6's terms.
"""

from __future__ import annotations

from typing import Any

from experiments import table_6
from experiments.arms import Arm, Setup, trainings
from experiments.jobs import Job
from experiments.outcomes import DIGITS, Outcomes, Section, column, number, over_seeds, text, unit_of
from experiments.paper import TABLE_10

TITLE = "Table 10: the same memory, spent on recurrence or on longer segments"
PAPER = (
    "With the memory of a GPU held equal, segments can be 176 long without recurrence (172 with the half loss) instead "
    "of 128. Recurrence is still better: 26.77 against 27.98, and 28.33 against 28.83."
)
ARMS = [(recurrence, loss) for recurrence in (True, False) for loss in ("full", "half")]


def runs(recurrence: bool, loss: str, setup: Setup) -> list[Job]:
    """The trainings of a row."""
    if recurrence:
        return table_6.runs(Arm(True, "relative", loss), setup)
    segment_len, max_segments = setup.profile.longer_segments[loss]
    arm = Arm(False, "relative", loss, segment_len=segment_len, max_segments=max_segments)
    return trainings(arm, setup, one_seed=loss == "half")


def sweep(run: Job, recurrence: bool, loss: str, setup: Setup) -> Job:
    """Its evaluation, over about as much text as the others'."""
    job = table_6.sweep(run, setup)
    max_segments = setup.profile.longer_segments[loss][1]
    if recurrence or max_segments is None:
        return job
    words = tuple(word for word in job.overrides if not word.startswith("max_segments="))
    return Job(job.name, job.command, (*words, f"max_segments={max_segments}"), job.arm, needs=job.needs)


def jobs(setup: Setup) -> list[Job]:
    """Every run and its evaluation."""
    found = [(run, arm) for arm in ARMS for run in runs(*arm, setup)]
    return [job for run, arm in found for job in (run, sweep(run, *arm, setup))]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table."""
    unit = unit_of(outcomes.metrics(runs(True, "full", setup)[0]))
    paper = {(row.recurrence, row.loss): row for row in TABLE_10}
    rows: list[dict[str, Any]] = []
    for arm in ARMS:
        found = runs(*arm, setup)
        results = {job.seed: outcomes.result(sweep(job, *arm, setup), "evaluation.json")["test"] for job in found}
        sweeps = {seed: result["sweep"] for seed, result in results.items()}
        theirs = paper[arm]
        rows.append(
            {
                "arm": text(f"{'recurrence' if arm[0] else 'no recurrence'}, {arm[1]} loss"),
                "segment": number(outcomes.metrics(found[0])["evaluation"]["segment_len"], 0),
                "init": over_seeds({seed: s["init"][unit] for seed, s in sweeps.items()}, DIGITS[unit]),
                "best": over_seeds({seed: s["best"][unit] for seed, s in sweeps.items()}, DIGITS[unit]),
                "length": over_seeds({seed: s["attention_length"] for seed, s in sweeps.items()}, 0),
                "tokens": number(next(iter(results.values()))["tokens"], 0),
                "paper_segment": number(theirs.segment_len, 0),
                "paper_init": number(theirs.ppl_init, 2),
                "paper_best": number(theirs.ppl_best, 2),
                "paper_length": number(theirs.attention_length, 0),
            }
        )
    return {
        "id": "table_10",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            "The longer segments are as many times longer as the paper's; batch and steps are those of the other rows, "
            "so that they see more tokens in training. The memory that was really used was not held equal here."
        ),
        "tables": [
            {
                "id": "table_10",
                "caption": TITLE,
                "columns": [
                    column("arm", "", "label"),
                    column("segment", "backpropagation length", "ours", "tokens"),
                    column("init", "init", "ours", unit),
                    column("best", "best", "ours", unit),
                    column("length", "attention length", "ours", "tokens"),
                    column("tokens", "scored", "ours", "tokens"),
                    column("paper_segment", "backpropagation length", "paper", "tokens"),
                    column("paper_init", "init", "paper", "ppl"),
                    column("paper_best", "best", "paper", "ppl"),
                    column("paper_length", "attention length", "paper", "tokens"),
                ],
                "rows": rows,
                "notes": ["Mean and standard error over seeds; a row without an error has one seed."],
            }
        ],
        "figures": [],
        "samples": [],
    }
