"""Table 9: how much faster evaluation is when states are reused instead of recomputed for every token.

The paper found 363, 773, 1,409 and 1,874 times at attention lengths of 800, 1,800, 2,800 and 3,800.
Runs: `txl speed`, with nothing beside it.
Writes: the table and its figure.
"""

from __future__ import annotations

from typing import Any

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_9
from experiments.report.cells import Section, column, number, text

TITLE = "Table 9: speed of evaluation"
PAPER = (
    "A vanilla Transformer that recomputes its window for every token is 363 times slower than Transformer-XL at an "
    "attention length of 800, and 1,874 times at 3,800."
)


def job(setup: Setup) -> Job:
    """The measurement."""
    return Job("speed", "speed", setup.profile.speed, "vanilla against state reuse", alone=True)


def jobs(setup: Setup) -> list[Job]:
    """The measurement, alone."""
    return [job(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The table and the figure."""
    measured = outcomes.result(job(setup), "speed.json")
    rows = [row(line) for line in measured["results"]]
    return {
        "id": "table_9",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            "The same random model reads the same text both ways, one token at a time; every scheme has a turn in "
            "every round. Ratios are medians over rounds, within each round; in brackets the lowest and the highest. "
            "Hidden states are the paper's memory; cached keys and values give the same losses."
        ),
        "tables": [
            {
                "id": "table_9",
                "caption": TITLE,
                "columns": [
                    column("arm", "", "label"),
                    column("length", "attention length", "label", "tokens"),
                    column("hidden", "vanilla / hidden states", "ours", "×"),
                    column("lowest", "lowest round", "ours", "×"),
                    column("highest", "highest round", "ours", "×"),
                    column("cached", "vanilla / cached", "ours", "×"),
                    column("milliseconds", "vanilla, a token", "ours", "ms"),
                    column("paper", "vanilla / Transformer-XL", "paper", "×"),
                ],
                "rows": rows,
            }
        ],
        "figures": [
            outcomes.figure(job(setup), "speed", "Time of a token by attention length.", "Time by attention length")
        ],
    }


def row(line: dict[str, Any]) -> dict[str, Any]:
    """One attention length at one level."""
    length, hidden = line["attention_len"], line["ratios"]["vanilla/hidden"]
    return {
        "arm": text({"char": "characters", "word": "words"}.get(line["level"], line["level"])),
        "length": number(length, 0),
        "hidden": number(hidden["median"], 0),
        "lowest": number(hidden["min"], 0),
        "highest": number(hidden["max"], 0),
        "cached": number(line["ratios"]["vanilla/cached"]["median"], 0),
        "milliseconds": number(1000 * line["seconds_per_token"]["vanilla"]["median"], 2),
        "paper": number(TABLE_9.get(length) if line["level"] == "char" else None, 0),
    }
