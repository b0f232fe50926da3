"""Table 9: speed of evaluation with reused states against recomputation for every token.

Paper: 363, 773, 1,409 and 1,874 times faster at attention lengths of 800, 1,800, 2,800 and 3,800.
Runs: `txl speed`, with no other job at the same time.
Writes: the table, the differences and the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.paper import TABLE_9
from experiments.report.sections import Row, Section, Table, Text, cell, copied_figures, label, ours, paper
from experiments.tables.comparisons import Comparison, comparisons_table
from experiments.tables.intervals import Interval, of_repeats

TITLE = "Table 9: speed of evaluation"
PAPER = (
    "A vanilla Transformer that recomputes its window for every token is 363 times slower than Transformer-XL at an "
    "attention length of 800, and 1,874 times at 3,800."
)
LEVELS = {"char": "characters", "word": "words"}


def jobs(setup: Setup) -> list[Job]:
    """Return the measurement."""
    return [_speed(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the figure."""
    measured = outcomes.result(_speed(setup), "speed.json")["results"]
    table = Table(
        id="table_9",
        caption=TITLE,
        columns=(
            label("arm"),
            label("length", "attention length", "tokens"),
            ours("hidden", "vanilla / hidden states", "×"),
            ours("lowest", "lowest round", "×"),
            ours("highest", "highest round", "×"),
            ours("cached", "vanilla / cached", "×"),
            ours("milliseconds", "vanilla, per token", "ms"),
            paper("paper", "vanilla / Transformer-XL", "×"),
        ),
        rows={f"{line['level']}-{line['attention_len']}": _row(line) for line in measured},
    )
    return Section(
        id="table_9",
        title=TITLE,
        paper=PAPER,
        here=(
            "Time per token of one model with random weights. Vanilla runs a forward pass over the whole attention "
            "length for every token, and only its last position is scored. State reuse runs segments of several tokens "
            "with a memory of the attention length. Every scheme runs once in every round; ratios are taken within a "
            "round, and shown are the median, the lowest and the highest over rounds. Hidden states are the paper's "
            "memory; cached keys and values give the same losses."
        ),
        tables=(table, comparisons_table("table_9", TITLE, "%", 0, differences(measured))),
        figures=copied_figures(
            outcomes, _speed(setup), {"speed": ("Time per token by attention length.", "Time by attention length")}
        ),
    )


def differences(measured: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Return the speed-up at the shortest attention length less 1, and its growth from length to length, in percent.

    Intervals are of the logarithms, whose errors are alike at all lengths.
    """
    found = []
    for level in dict.fromkeys(line["level"] for line in measured):
        lines = sorted((line for line in measured if line["level"] == level), key=lambda line: line["attention_len"])
        ratios = [(line["attention_len"], _log_ratios(line)) for line in lines]
        shortest, logs = ratios[0]
        theirs = TABLE_9 if level == "char" else {}
        steps: list[tuple[str, Interval, float | None]] = [
            (f"speed-up at {shortest:,}", _in_percent(logs), theirs.get(shortest))
        ]
        for (short, before), (long, after) in pairwise(ratios):
            growth = theirs[long] / theirs[short] if short in theirs and long in theirs else None
            steps.append((f"speed-up at {long:,} / at {short:,}", _in_percent(after - before), growth))
        found += [
            Comparison(
                f"speed_up_grows/{level}-{i}",
                f"{LEVELS.get(level, level)}: {title}",
                interval,
                interval,
                None if factor is None else 100 * (factor - 1),
            )
            for i, (title, interval, factor) in enumerate(steps)
        ]
    return found


def _in_percent(logarithms: NDArray[np.float64]) -> Interval:
    return of_repeats(logarithms).mapped(lambda logarithm: 100 * math.expm1(logarithm))


def _log_ratios(line: dict[str, Any]) -> NDArray[np.float64]:
    """Logarithm of vanilla / hidden states, one for each round."""
    seconds = line["seconds_per_token"]
    return np.log(np.asarray(seconds["vanilla"]["rounds"])) - np.log(np.asarray(seconds["hidden"]["rounds"]))


def _speed(setup: Setup) -> Job:
    return Job("speed", "speed", setup.profile.speed, "vanilla against state reuse", alone=True)


def _row(line: dict[str, Any]) -> Row:
    """Return the row of one attention length at one level."""
    length, hidden = line["attention_len"], line["ratios"]["vanilla/hidden"]
    return {
        "arm": Text(LEVELS.get(line["level"], line["level"])),
        "length": cell(length, 0),
        "hidden": cell(hidden["median"], 0),
        "lowest": cell(hidden["min"], 0),
        "highest": cell(hidden["max"], 0),
        "cached": cell(line["ratios"]["vanilla/cached"]["median"], 0),
        "milliseconds": cell(1000 * line["seconds_per_token"]["vanilla"]["median"], 2),
        "paper": cell(TABLE_9.get(length) if line["level"] == "char" else None, 0),
    }
