"""Numbers of the tables and the differences beside them, computed a second time from the result files."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import paper, reproduce
from experiments.arms import OFF, ON, Arm
from experiments.claims import judged
from experiments.engine.jobs import Outcomes, merge
from experiments.engine.profiles import PROFILES, Setup
from experiments.reproduce import SECTIONS
from experiments.sections import Number, Section
from experiments.tables import figures_5_to_7, table_9
from tests.experiments.tables.sample_outcomes import small_corpus, write_outcomes


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("reproduction")
    profile = replace(PROFILES["laptop"], seeds=(1, 2), seeds_of={arm.key: (1, 2, 3) for arm in (ON, OFF)})
    return Setup(profile, small_corpus(folder), folder / "report")


@pytest.fixture(scope="module")
def sections(setup: Setup) -> dict[str, Section]:
    """All sections of a finished reproduction with all arms."""
    jobs = merge({name: table.jobs(setup) for name, table in SECTIONS.items()})
    write_outcomes(setup, jobs)
    outcomes = Outcomes(setup.runs, setup.figures, tuple(jobs))
    return {name: table.section(setup, outcomes) for name, table in SECTIONS.items()}


def evaluations(setup: Setup, arm: Arm) -> dict[str, Any]:
    """Content of `evaluation.json` of an arm's runs, by seed."""
    found = {str(seed): setup.runs / f"{arm.key}-seed{seed}-lengths/evaluation.json" for seed in (1, 2, 3)}
    return {seed: json.loads(path.read_text()) for seed, path in found.items() if path.is_file()}


@pytest.mark.slow
def test_every_claim_has_differences(sections: dict[str, Section]) -> None:
    assert all(claim["rows"] for claim in judged(list(sections.values())))


def test_rows_of_table_6(setup: Setup, sections: dict[str, Section]) -> None:
    table, _ = sections["table_6"].tables
    places = (("", "test", "selected"), ("valid_", "valid", "sweep"))
    columns = [(f"{prefix}{at}", split, part, at) for prefix, split, part in places for at in ("init", "best")]
    assert len(table.rows) == len(paper.TABLE_6)
    for row in paper.TABLE_6:
        arm = Arm(row.recurrence, row.encoding, row.loss)
        shown: dict[str, Any] = dict(table.rows[arm.key])
        for name, split, part, at in columns:
            by_seed = {seed: found[split][part][at]["bpb"] for seed, found in evaluations(setup, arm).items()}
            error = statistics.stdev(by_seed.values()) / math.sqrt(len(by_seed))
            assert shown[name] == Number(statistics.mean(by_seed.values()), 3, error, by_seed)
        theirs = [shown[name].value for name in ("paper_init", "paper_best", "paper_length")]
        assert theirs == [row.ppl_init, row.ppl_best, row.attention_length]


@pytest.mark.parametrize(
    ("key", "arms", "at", "ppl"),
    [
        ("recurrence_helps/init", (OFF, ON), "init", (29.59, 27.02)),
        ("recurrence_helps_at_the_best_lengths/best", (OFF, ON), "best", (29.02, 26.77)),
        ("our_encoding_is_better/shaw_recurrence", (Arm(True, "shaw"), ON), "best", (27.94, 26.77)),
        ("our_encoding_is_better/shaw", (Arm(False, "shaw"), OFF), "best", (29.75, 29.02)),
    ],
)
def test_differences_of_table_6(key: str, arms: Any, at: str, ppl: Any, setup: Setup, sections: Any) -> None:
    """A difference is the mean over the seeds that both arms have; every file has the same positions."""
    worse, better = arms
    (row,) = (row for row in sections["table_6"].differences if row.key == key)

    def losses(arm: Arm, seed: str) -> Any:
        with np.load(setup.runs / f"{arm.key}-seed{seed}-lengths/{at}.npz") as file:
            return file["nll"].mean()

    seeds = evaluations(setup, worse).keys() & evaluations(setup, better).keys()
    difference = np.mean([losses(worse, seed) - losses(better, seed) for seed in seeds])
    assert row.effect == pytest.approx(difference / math.log(2))
    assert row.percent == pytest.approx(100 * difference / np.mean([losses(worse, seed) for seed in seeds]))
    assert row.paper == pytest.approx(100 * (1 - math.log(ppl[1]) / math.log(ppl[0])))


def test_rows_of_table_8(setup: Setup, sections: dict[str, Section]) -> None:
    (table,) = sections["table_8"].tables
    rows: dict[Any, Any] = {row["arm"]: row for row in table.rows.values()}
    assert len(rows) == len(paper.TABLE_8)
    for row in paper.TABLE_8:
        files = [setup.runs / f"recl-group{row.group}-seed{seed}/recl.json" for seed in (1, 2)]
        models = [model for file in files for model in json.loads(file.read_text())["models"]]
        found = [model for model in models if model["name"] == row.model]
        shown = rows[f"group {row.group}: {row.model}"]
        for r in row.recl:
            assert shown[f"r{r}"].value == statistics.mean(model["recl"][f"{r}"]["value"] for model in found)
            assert shown[f"paper_r{r}"].value == row.recl[r]
        assert shown["loss"].value == pytest.approx(statistics.mean(model["bpb"][-1] for model in found))


def test_the_speed_up_and_its_growth_are_in_percent_of_ratios_within_a_round() -> None:
    """Twice and four times as fast at 800, 32 times at 3,800."""
    rounds = {800: ([2.0, 4.0], [1.0, 1.0]), 3800: ([32.0, 64.0], [1.0, 2.0])}
    measured = []
    for length, (vanilla, hidden) in rounds.items():
        seconds = {"vanilla": {"rounds": vanilla}, "hidden": {"rounds": hidden}}
        measured.append({"level": "char", "attention_len": length, "seconds_per_token": seconds})
    shortest, growth = table_9.differences(measured)
    assert (shortest.effect, growth.effect) == pytest.approx((100 * (8**0.5 - 1), 100 * (32 / 8**0.5 - 1)))
    assert (shortest.paper, growth.paper) == pytest.approx((100 * 362, 100 * (1874 / 363 - 1)))


def test_shapes_of_attention_by_term() -> None:
    """(a) is uniform, (b) and all terms look at the nearest token alone, (d) at the nearest two."""
    rows = {"all": [1.0, 0, 0, 0], "a": [1, 1, 1, 1], "b": [2, 0, 0, 0], "d": [1, 1, 0, 0]}
    found = figures_5_to_7.differences({"Adam": {name: np.array([row, row], float) for name, row in rows.items()}})
    assert {row.key.rpartition("-")[2]: row.effect for row in found} == pytest.approx(
        {"a_uniform": 0.1, "b_unlike_a": 0.75, "b_unlike_d": 0.5, "d_nearer": 1.0, "d_flatter": 0.5}
    )


def test_the_papers_numbers_come_first(setup: Setup, sections: dict[str, Section], tmp_path: Path) -> None:
    """In the tables, and in the differences of the claims."""
    planned = {name: table.jobs(setup) for name, table in SECTIONS.items()}
    outcomes = Outcomes(tmp_path, tmp_path / "figures", tuple(merge(planned)), frozenset())
    pending = [reproduce.section(table, name, setup, outcomes) for name, table in SECTIONS.items()]
    for before, after in zip(pending, sections.values(), strict=True):
        assert before.title == after.title
        assert not before.figures
        tables = {table.id: table for table in before.tables}
        for table in (table for table in after.tables if any(column.of == "paper" for column in table.columns)):
            for key, row in table.rows.items():
                shown = tables[table.id].rows[key]
                for column in (column for column in table.columns if column.key in shown):
                    costs = column.key in ("segment", "memory")  # known before
                    assert shown[column.key] == (None if column.of == "ours" and not costs else row[column.key])
    claims = {claim["id"]: claim["rows"] for claim in judged(pending)}
    for claim in judged(list(sections.values())):
        paper_percents = {row["key"]: row["paper"] for row in claim["rows"] if "paper" in row}
        assert {row["key"]: row["paper"] for row in claims[claim["id"]] if "paper" in row} == paper_percents
        assert {row["mark"] for row in claims[claim["id"]]} <= {"–"}
