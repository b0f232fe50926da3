"""Numbers of the tables and the differences beside them, computed a second time from the result files."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments import paper
from experiments.arms import OFF, ON, Arm
from experiments.claims import judge
from experiments.engine.jobs import Outcomes
from experiments.engine.profiles import PROFILES, Setup
from experiments.reproduce import SECTIONS
from experiments.sections import Number, Section
from experiments.tables import figures_5_to_7, table_9
from tests.experiments.tables.sample_outcomes import finished, small_corpus


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("reproduction")
    seeds_of = {arm.key: (1, 2, 3) for arm in (ON, OFF)}
    profile = replace(
        PROFILES["laptop"],
        seeds=(1, 2),
        seeds_of=seeds_of,
    )
    return Setup(profile, small_corpus(folder), folder / "report", sections=tuple(SECTIONS))


@pytest.fixture(scope="module")
def outcomes(setup: Setup) -> Outcomes:
    """Outcomes of a finished reproduction with all arms."""
    return finished(setup)


@pytest.fixture(scope="module")
def sections(setup: Setup, outcomes: Outcomes) -> dict[str, Section]:
    return {name: table.section(setup, outcomes) for name, table in SECTIONS.items()}


def evaluations(setup: Setup, arm: Arm) -> dict[str, Any]:
    """Return the content of `evaluation.json` of an arm's runs, by seed."""
    contents = {}
    for path in setup.runs.glob(f"{arm.key}-seed?-lengths/evaluation.json"):
        seed = path.parent.name.removesuffix("-lengths")[-1]
        contents[seed] = json.loads(path.read_text())
    return dict(sorted(contents.items()))


@pytest.mark.slow
def test_every_claim_has_differences(sections: dict[str, Section]) -> None:
    assert all(claim["rows"] for claim in judge(list(sections.values())))


def test_rows_of_table_6(setup: Setup, sections: dict[str, Section]) -> None:
    (table,) = sections["table_6"].tables
    for row in paper.TABLE_6:
        arm = Arm(row.recurrence, row.encoding, row.loss)
        cells: dict[str, Any] = dict(table.rows[arm.key])
        for at in ("init", "best"):
            by_seed = {}
            for seed, content in evaluations(setup, arm).items():
                by_seed[seed] = content["test"]["selected"][at]["bpb"]
            error = statistics.stdev(by_seed.values()) / math.sqrt(len(by_seed))
            assert cells[at] == Number(
                statistics.mean(by_seed.values()),
                3,
                error,
                by_seed,
            )
        assert cells["paper_init"].value == row.ppl_init
        assert cells["paper_best"].value == row.ppl_best
        assert cells["paper_length"].value == row.attention_length


@pytest.mark.parametrize(
    ("key", "arms", "at", "ppl"),
    [
        ("recurrence_helps/init", (OFF, ON), "init", (29.59, 27.02)),
        ("our_encoding_is_better/shaw", (Arm(False, "shaw"), OFF), "best", (29.75, 29.02)),
    ],
)
def test_differences_of_table_6(
    key: str, arms: Any, at: str, ppl: Any, setup: Setup, sections: dict[str, Section]
) -> None:
    """A difference is the mean over the seeds that both arms have; every file has the same positions."""
    worse, better = arms
    (row,) = (row for row in sections["table_6"].differences if row.key == key)

    def loss(arm: Arm, seed: str) -> float:
        with np.load(setup.runs / f"{arm.key}-seed{seed}-lengths/{at}.npz") as file:
            return float(file["nll"].mean())

    seeds = evaluations(setup, worse).keys() & evaluations(setup, better).keys()
    worse_loss = statistics.mean(loss(worse, seed) for seed in seeds)
    difference = worse_loss - statistics.mean(loss(better, seed) for seed in seeds)
    assert row.effect == pytest.approx(difference / math.log(2))
    assert row.percent == pytest.approx(100 * difference / worse_loss)
    ratio = math.log(ppl[1]) / math.log(ppl[0])
    assert row.paper == pytest.approx(100 * (1 - ratio))


def test_rows_of_table_8(setup: Setup, sections: dict[str, Section]) -> None:
    (table,) = sections["table_8"].tables
    rows: dict[Any, Any] = {row["arm"]: row for row in table.rows.values()}
    for (group, name), lengths in paper.TABLE_8.items():
        models = []
        for seed in (1, 2):
            path = setup.runs / f"recl-group{group}-seed{seed}" / "recl.json"
            by_name = {model["name"]: model for model in json.loads(path.read_text())["models"]}
            models.append(by_name[name])
        cells = rows[f"group {group}: {name}"]
        for r, length in lengths.items():
            values = [model["recl"][r]["value"] for model in models]
            assert cells[f"r{r}"].value == statistics.mean(values)
            assert cells[f"paper_r{r}"].value == length
        losses = [model["bpb"][-1] for model in models]
        assert cells["loss"].value == pytest.approx(statistics.mean(losses))


def test_the_speed_up_and_its_growth_are_in_percent_of_ratios_within_a_round() -> None:
    """Twice and four times as fast at 800, 32 times at 3,800."""
    rounds = {800: ([2.0, 4.0], [1.0, 1.0]), 3800: ([32.0, 64.0], [1.0, 2.0])}
    measured = []
    for length, (vanilla, hidden) in rounds.items():
        seconds = {"vanilla": {"rounds": vanilla}, "hidden": {"rounds": hidden}}
        measured.append({"attention_len": length, "seconds_per_token": seconds})
    shortest, growth = table_9.differences(measured)
    assert shortest.effect == pytest.approx(100 * (8**0.5 - 1))
    assert growth.effect == pytest.approx(100 * (32 / 8**0.5 - 1))
    assert shortest.paper == pytest.approx(100 * 362)
    assert growth.paper == pytest.approx(100 * (1874 / 363 - 1))


def test_shapes_of_attention_by_term() -> None:
    """(a) is uniform, (b) and all terms look at the nearest token alone, (d) at the nearest two."""
    rows = {
        "all": [1.0, 0, 0, 0],
        "a": [1, 1, 1, 1],
        "b": [2, 0, 0, 0],
        "d": [1, 1, 0, 0],
    }
    maps = {name: np.array([row, row], dtype=float) for name, row in rows.items()}
    differences = figures_5_to_7.differences({"Adam": maps})
    effects = {row.key.rpartition("-")[2]: row.effect for row in differences}
    assert effects == pytest.approx(
        {"a_uniform": 0.1, "b_unlike_a": 0.75, "b_unlike_d": 0.5, "d_nearer": 1.0, "d_flatter": 0.5}
    )


def test_the_papers_numbers_stand_there_before_ours(
    setup: Setup, outcomes: Outcomes, sections: dict[str, Section]
) -> None:
    nothing = replace(outcomes, finished=frozenset())
    for name, table in SECTIONS.items():
        before = table.section(setup, nothing)
        assert not before.figures
        for early, late in zip(
            before.tables,
            sections[name].tables,
            strict=False,
        ):
            papers = [column.key for column in early.columns if column.of == "paper"]
            for key, row in late.rows.items():
                for column in papers:
                    assert early.rows[key].get(column) == row.get(column)
        late_percents = {row.key: row.paper for row in sections[name].differences}
        for row in before.differences:
            assert row.effect is None
            assert row.paper == late_percents[row.key]
