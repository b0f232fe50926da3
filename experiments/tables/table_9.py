"""Table 9: evaluation speed with reused states against recomputation for every token.

Paper: 363, 773, 1,409 and 1,874 times faster at attention lengths 800, 1,800, 2,800 and 3,800.
Runs: `txl speed`, with no other job at the same time.
Writes: the table, the differences and the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_9
from experiments.sections import Cell, Column, Difference, Section, Table, cell, copied_figures
from experiments.tables.differences import with_effect
from experiments.tables.intervals import Array, of_repeats

TITLE = "Table 9: speed of evaluation"
COLUMNS = (
    Column("label", "arm"),
    Column("label", "length", "attention length", "tokens"),
    Column("ours", "hidden", "time of vanilla / of hidden states", "times ↑"),
    Column("ours", "cached", "time of vanilla / of cached keys", "times ↑"),
    Column("paper", "paper", "time of vanilla / of Transformer-XL", "times ↑"),
)


def jobs(setup: Setup) -> list[Job]:
    """Return the measurement."""
    words = tuple(setup.profile.speed)
    return [Job("speed", "speed", words, "vanilla against state reuse", alone=True)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, the differences and the figure."""
    (job,) = jobs(setup)
    measured: list[dict[str, Any]] = [{"attention_len": length} for length in TABLE_9]
    if outcomes.has(job):
        measured = outcomes.result(job, "speed.json")["results"]
    rows = {f"char-{line['attention_len']}": _cells(line) for line in measured}
    return Section(
        id="table_9",
        title=TITLE,
        here=(
            "Time per token of one model with random weights. Vanilla runs a forward pass over the "
            "whole attention length for every token, and only its last position is scored. State "
            "reuse runs segments of several tokens with a memory of the attention length. Every "
            "scheme runs once in every round; shown are medians over rounds of the ratios within a "
            "round. Hidden states are the paper's memory; cached keys and values give the same "
            "losses."
        ),
        tables=[Table("table_9", TITLE, COLUMNS, rows)],
        figures=copied_figures(outcomes, job, {"speed": "Time per token by attention length."}),
        differences=differences(measured),
    )


def _cells(line: dict[str, Any]) -> dict[str, Cell]:
    length = line["attention_len"]
    cells: dict[str, Cell] = {
        "arm": "characters",
        "length": cell(length, 0),
        "paper": cell(TABLE_9.get(length), 0),
    }
    if "ratios" in line:
        ratios = line["ratios"]
        cells["hidden"] = cell(ratios["vanilla/hidden"]["median"], 0)
        cells["cached"] = cell(ratios["vanilla/cached"]["median"], 0)
    return cells


def differences(measured: Sequence[dict[str, Any]]) -> list[Difference]:
    """Return both ends of the curve: the speed-up at the shortest length less 1, and its growth to the longest.

    In percent. Intervals are computed for logarithms, whose errors are alike at all lengths.
    """
    lines = {line["attention_len"]: line for line in measured}
    shortest = min(lines)
    longest = max(lines)
    logs = _log_ratios(lines[shortest])
    title = f"speed-up at {shortest:,}"
    rows = [
        _difference(
            "shortest",
            title,
            logs,
            TABLE_9.get(shortest),
        )
    ]
    if longest > shortest:
        in_paper = None
        if longest in TABLE_9 and shortest in TABLE_9:
            in_paper = TABLE_9[longest] / TABLE_9[shortest]
        growth = _log_ratios(lines[longest]) - logs
        title = f"speed-up at {longest:,} / at {shortest:,}"
        rows.append(_difference("growth", title, growth, in_paper))
    return rows


def _difference(key: str, title: str, logs: Array, in_paper: float | None) -> Difference:
    """Return a factor less 1, in percent, from its rounds' logarithms."""
    paper_percent = None if in_paper is None else 100 * (in_paper - 1)
    name = f"speed_up_grows/char-{key}"
    empty = Difference(
        name,
        f"characters: {title}",
        "%",
        paper=paper_percent,
    )
    if not len(logs):
        return empty
    effect = of_repeats(logs).mapped(lambda log: 100 * math.expm1(log))
    return with_effect(empty, effect, effect)


def _log_ratios(line: dict[str, Any]) -> Array:
    """Return log(vanilla / hidden states) for each round; none before they are measured."""
    if "seconds_per_token" not in line:
        return np.array([])
    seconds = line["seconds_per_token"]
    return np.log(seconds["vanilla"]["rounds"]) - np.log(seconds["hidden"]["rounds"])
