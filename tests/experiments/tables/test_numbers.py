"""Numbers of Tables 6 and 8 and the claims beside them, computed a second time from the result files."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import numpy as np
import pytest

from experiments import paper
from experiments.engine.profiles import Setup
from experiments.sections import Number, Section, Table
from experiments.tables.intervals import student

ON, OFF, SHAW = "recurrence-relative-full_loss", "no_recurrence-relative-full_loss", "recurrence-shaw-full_loss"


def evaluations(setup: Setup, arm: str) -> dict[str, dict[str, Any]]:
    """Content of `evaluation.json` of an arm's runs, by seed."""
    folders = sorted(setup.runs.glob(f"{arm}-seed*-lengths"))
    assert folders
    return {
        folder.name.removeprefix(f"{arm}-seed").removesuffix("-lengths"): json.loads(
            (folder / "evaluation.json").read_text()
        )
        for folder in folders
    }


def number(table: Table, row: str, column: str) -> Number:
    found = table.rows[row][column]
    assert isinstance(found, Number)
    return found


def test_rows_of_table_6(finished: Setup, tables: dict[str, Table]) -> None:
    table = tables["table_6"]
    assert len(table.rows) == len(paper.TABLE_6)
    for row in paper.TABLE_6:
        arm = f"{'recurrence' if row.recurrence else 'no_recurrence'}-{row.encoding}-{row.loss}_loss"
        found = evaluations(finished, arm)
        columns = {
            "init": {seed: one["test"]["selected"]["init"]["bpc"] for seed, one in found.items()},
            "best": {seed: one["test"]["selected"]["best"]["bpc"] for seed, one in found.items()},
            "valid_init": {seed: one["valid"]["sweep"]["init"]["bpc"] for seed, one in found.items()},
            "valid_best": {seed: one["valid"]["sweep"]["best"]["bpc"] for seed, one in found.items()},
        }
        for column, by_seed in columns.items():
            shown, values = number(table, arm, column), list(by_seed.values())
            assert (shown.by_seed, shown.value) == (by_seed, pytest.approx(statistics.mean(values)))
            assert shown.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)))
        lengths = {seed: one["valid"]["sweep"]["attention_length"] for seed, one in found.items()}
        assert (number(table, arm, "length").by_seed, number(table, arm, "length").standard_error) == (lengths, None)
        theirs = [number(table, arm, name).value for name in ("paper_init", "paper_best", "paper_length")]
        assert theirs == [row.ppl_init, row.ppl_best, row.attention_length]


@pytest.mark.parametrize(
    ("key", "worse", "better", "at", "ppl"),
    [
        ("recurrence_helps/init", OFF, ON, "init", (29.59, 27.02)),
        ("recurrence_helps_at_the_best_lengths/best", OFF, ON, "best", (29.02, 26.77)),
        ("our_encoding_is_better/shaw_recurrence", SHAW, ON, "best", (27.94, 26.77)),
        (
            "half_loss_rescues_absolute_encodings/al_rfou",
            *("no_recurrence-al_rfou-full_loss", "no_recurrence-al_rfou-half_loss", "init", None),
        ),
    ],
)
def test_differences_of_table_6(
    key: str,
    worse: str,
    better: str,
    at: str,
    ppl: tuple[float, float] | None,
    finished: Setup,
    sections: list[Section],
) -> None:
    """A difference is the mean over the seeds that both arms have; every file has the same positions."""
    (row,) = (row for section in sections for row in section.differences if row.key == key)

    def losses(arm: str, seed: str) -> np.ndarray:
        with np.load(finished.runs / f"{arm}-seed{seed}-lengths" / f"losses_test_{at}.npz") as file:
            return file["nll"].astype(np.float64)

    seeds = sorted(evaluations(finished, worse).keys() & evaluations(finished, better).keys())
    differences = np.stack([losses(worse, seed) - losses(better, seed) for seed in seeds])
    worse_nats = np.mean([losses(worse, seed).mean() for seed in seeds])
    assert row.effect == pytest.approx(differences.mean() / math.log(2), rel=1e-6)
    assert row.percent == pytest.approx(100 * differences.mean() / worse_nats, rel=1e-6)
    assert row.low is not None
    assert row.high is not None
    assert row.low < row.effect < row.high
    if ppl is not None:
        assert row.paper == pytest.approx(100 * (math.log(ppl[0]) - math.log(ppl[1])) / math.log(ppl[0]))


def test_rows_and_differences_of_table_8(finished: Setup, tables: dict[str, Table], sections: list[Section]) -> None:
    table, longest = tables["table_8"], {}
    theirs = {(row.group, row.model): row for row in paper.TABLE_8}
    found = {
        (group, seed): {model["name"]: model for model in json.loads((folder / "recl.json").read_text())["models"]}
        for group in (1, 2)
        for seed in (1, 2, 3)
        if (folder := finished.runs / f"recl-group{group}-seed{seed}").is_dir()
    }
    assert sorted(found) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    names = {(row["arm"]): key for key, row in table.rows.items()}
    assert len(names) == len(paper.TABLE_8)
    for (group, name), row in theirs.items():
        key, models = names[f"group {group}: {name}"], [found[group, seed][name] for seed in (1, 2)]
        for r in ("0.1", "0.5", "1.0"):
            assert number(table, key, f"r{r}").value == statistics.mean(model["recl"][r]["value"] for model in models)
            assert number(table, key, f"paper_r{r}").value == row.recl[float(r)]
        assert number(table, key, "loss").value == pytest.approx(statistics.mean(model["bpc"][-1] for model in models))
        longest[group, name] = [model["recl"]["0.1"]["value"] for model in models]
    moves = {
        key: [a - b for a, b in zip(longest[key[0], "Transformer-XL"], of, strict=True)] for key, of in longest.items()
    }
    moves = {key: by_seed for key, by_seed in moves.items() if key[1] != "Transformer-XL"}
    variance = statistics.mean(statistics.variance(by_seed) for by_seed in moves.values())
    half = student(len(moves)) * math.sqrt(variance / 2)
    rows = {row.title: row for section in sections for row in section.differences if row.key.startswith("recl_order/")}
    assert len(rows) == 2 * len(moves)
    for (group, name), by_seed in moves.items():
        row, effect = rows[f"group {group}: Transformer-XL − {name}, RECL"], statistics.mean(by_seed)
        assert (row.effect, row.low, row.high) == pytest.approx((effect, effect - half, effect + half))
        ours, other = theirs[group, "Transformer-XL"].recl[0.1], theirs[group, name].recl[0.1]
        assert row.paper == pytest.approx(100 * (ours - other) / other)
