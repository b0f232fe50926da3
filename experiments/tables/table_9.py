"""Table 9: speed of evaluation with reused states against recomputation for every token.

Paper: 363, 773, 1,409 and 1,874 times faster at attention lengths of 800, 1,800, 2,800 and 3,800.
Runs: `txl speed`, with no other job at the same time.
Writes: the table, the differences and the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.paper import TABLE_9
from experiments.sections import Cell, Difference, Section, Table, cell, copied_figures, label, ours, paper
from experiments.tables.differences import row
from experiments.tables.intervals import Interval, of_repeats

TITLE = "Table 9: speed of evaluation"
LEVELS = {"char": "characters", "word": "words"}


def jobs(setup: Setup) -> list[Job]:
    """Return the measurement."""
    return [_speed(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table and the figure."""
    planned: list[dict[str, Any]] = [{"level": "char", "attention_len": length} for length in TABLE_9]
    done = outcomes.has(_speed(setup))
    measured = outcomes.result(_speed(setup), "speed.json")["results"] if done else planned

    def ratio(line: dict[str, Any], scheme: str, value: str) -> Cell:
        return cell(line["ratios"][f"vanilla/{scheme}"][value], 0) if done else None

    table = Table.filled(
        "table_9",
        TITLE,
        {f"{line['level']}-{line['attention_len']}": line for line in measured},
        {
            label("arm"): lambda line: LEVELS.get(line["level"], line["level"]),
            label("length", "attention length", "tokens"): lambda line: cell(line["attention_len"], 0),
            ours("hidden", "time of vanilla / of hidden states", "times ↑"): lambda line: ratio(
                line, "hidden", "median"
            ),
            ours("lowest", "the same, lowest round", "times ↑"): lambda line: ratio(line, "hidden", "min"),
            ours("highest", "the same, highest round", "times ↑"): lambda line: ratio(line, "hidden", "max"),
            ours("cached", "time of vanilla / of cached keys", "times ↑"): lambda line: ratio(line, "cached", "median"),
            ours("milliseconds", "time of vanilla, a token", "ms ↓"): lambda line: (
                cell(1000 * line["seconds_per_token"]["vanilla"]["median"], 2) if done else None
            ),
            paper("paper", "time of vanilla / of Transformer-XL", "times ↑"): lambda line: cell(
                TABLE_9.get(line["attention_len"]) if line["level"] == "char" else None, 0
            ),
        },
    )
    return Section(
        id="table_9",
        title=TITLE,
        here=(
            "Time per token of one model with random weights. Vanilla runs a forward pass over the whole attention "
            "length for every token, and only its last position is scored. State reuse runs segments of several tokens "
            "with a memory of the attention length. Every scheme runs once in every round; ratios are taken within a "
            "round, and shown are the median, the lowest and the highest over rounds. Hidden states are the paper's "
            "memory; cached keys and values give the same losses."
        ),
        tables=(table,),
        figures=copied_figures(outcomes, _speed(setup), {"speed": "Time per token by attention length."}),
        differences=tuple(differences(measured)),
    )


def differences(measured: Sequence[dict[str, Any]]) -> list[Difference]:
    """Return both ends of the curve: the speed-up at the shortest length less 1, and its growth to the longest.

    In percent. Intervals are of the logarithms, whose errors are alike at all lengths.
    """
    found = []
    for level in dict.fromkeys(line["level"] for line in measured):
        ratios = {line["attention_len"]: _log_ratios(line) for line in measured if line["level"] == level}
        shortest, longest = min(ratios), max(ratios)
        theirs = TABLE_9 if level == "char" else {}
        ends: list[tuple[str, str, NDArray[np.float64], float | None]] = [
            ("shortest", f"speed-up at {shortest:,}", ratios[shortest], theirs.get(shortest))
        ]
        if longest > shortest:
            growth = theirs[longest] / theirs[shortest] if {shortest, longest} <= set(theirs) else None
            title = f"speed-up at {longest:,} / at {shortest:,}"
            ends.append(("growth", title, ratios[longest] - ratios[shortest], growth))
        for key, title, logs, factor in ends:
            theirs_percent = None if factor is None else 100 * (factor - 1)
            named = (f"speed_up_grows/{level}-{key}", f"{LEVELS.get(level, level)}: {title}", "%")
            if len(logs):
                effect = _in_percent(logs)
                found.append(row(*named, effect, effect, theirs_percent))
            else:
                found.append(Difference(*named, paper=theirs_percent))
    return found


def _in_percent(logarithms: NDArray[np.float64]) -> Interval:
    return of_repeats(logarithms).mapped(lambda logarithm: 100 * math.expm1(logarithm))


def _log_ratios(line: dict[str, Any]) -> NDArray[np.float64]:
    """Logarithm of vanilla / hidden states, one for each round; none before they are measured."""
    seconds = line.get("seconds_per_token", {scheme: {"rounds": []} for scheme in ("vanilla", "hidden")})
    return np.log(np.asarray(seconds["vanilla"]["rounds"])) - np.log(np.asarray(seconds["hidden"]["rounds"]))


def _speed(setup: Setup) -> Job:
    return Job("speed", "speed", tuple(setup.profile.speed), "vanilla against state reuse", alone=True)
