"""Differences of effective context lengths: over seeds, with lengths beyond the grid; and the seeds of each group."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import judged
from experiments.engine.jobs import Pending
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.sections import Section
from experiments.tables import table_8
from experiments.tables.comparisons import comparisons_table
from tests.experiments.conftest import outcomes_of


def result(lengths: dict[str, int], beyond: Sequence[str] = ()) -> dict[str, Any]:
    """Return `recl.json` of a seed on a grid with steps of 32; guarded RECL is 32 tokens shorter and never open."""
    models = []
    for name, value in lengths.items():
        recl = {"value": value, "at_least": name in beyond, "guarded": value - 32, "guarded_at_least": False}
        models.append({"name": name, "recl": {"0.1": recl}})
    return {"step": 32, "models": models}


@pytest.mark.parametrize(
    ("lengths", "beyond", "ends", "mark"),
    [
        ((192, 64), (), (True, True), "holds"),
        ((320, 64), ("Transformer-XL",), (True, False), "holds"),
        ((192, 320), ("QRNN",), (False, True), "does not hold"),
        ((320, 320), ("Transformer-XL", "QRNN"), (False, False), "within noise"),
        ((320, 320), ("Transformer-XL",), (True, False), "within noise"),
    ],
)
def test_a_length_beyond_the_grid_leaves_its_side_open(
    lengths: tuple[int, int], beyond: tuple[str, ...], ends: tuple[bool, bool], mark: str
) -> None:
    """Three seeds of group 1, of which the last has the lengths beyond the grid."""
    names = ("Transformer-XL", "QRNN")
    by_seed = {seed: result(dict(zip(names, lengths, strict=True))) for seed in (1, 2)}
    by_seed[1]["models"][0]["recl"]["0.1"]["value"] += 32
    by_seed[3] = result(dict(zip(names, lengths, strict=True)), beyond)
    found, guarded = table_8.differences({1: by_seed}, {1: 2})
    assert found.difference is not None
    mean = lengths[0] - lengths[1] + 32 / 3
    half = 4.302653 * 32 / 3  # t with 2 degrees of freedom; standard error of 32, 0, 0
    expected = (mean - half if ends[0] else None, mean + half if ends[1] else None)
    assert (found.difference.low, found.difference.high) == pytest.approx(expected)
    assert (found.difference.effect, found.step, found.pending) == (pytest.approx(mean), 32, 2)
    assert guarded.key == "guarded/group1-qrnn"
    assert guarded.difference is not None
    assert (guarded.difference.effect, guarded.difference.low) == (lengths[0] - lengths[1], lengths[0] - lengths[1])
    table = comparisons_table("table_8", "Table 8", "tokens", 0, [found, guarded])
    claims = judged([Section("table_8", "Table 8", "paper", "here", (table,))])
    assert [claim["mark"] for claim in claims if claim["id"] == "recl_order"] == [mark]


def test_the_spread_between_seeds_is_that_of_both_groups() -> None:
    group_1 = {seed: result({"Transformer-XL": 192, "QRNN": 64 + move, "LSTM": 96}) for seed, move in ((1, 0), (2, 32))}
    group_2 = {1: result({"Transformer-XL": 192, "no recurrence": 128})}
    first, second, third, *_ = table_8.differences({1: group_1, 2: group_2}, {1: 0, 2: 0})
    sigma = (512 / 2) ** 0.5  # two differences of two seeds: 16² + 16² and 0, two degrees of freedom
    for found, effect, n in ((first, 112, 2), (second, 96, 2), (third, 64, 1)):
        assert found.difference is not None
        assert found.difference.effect == effect
        assert found.difference.high == pytest.approx(effect + 4.302653 * sigma / n**0.5, rel=1e-5)
    alone = table_8.differences({1: {1: group_1[1]}, 2: group_2}, {1: 0, 2: 0})
    assert {(one.difference.low, one.difference.high) for one in alone if one.difference} == {(None, None)}


def test_a_group_is_measured_for_the_seeds_that_all_its_models_have(tmp_path: Path) -> None:
    profile = replace(PROFILES["laptop"], seeds=(1, 2, 3), seeds_others=(1, 2), seeds_absolute=(1,), leave_out=())

    def names(seeds_of: dict[str, tuple[int, ...]]) -> list[str]:
        jobs = table_8.jobs(Setup(replace(profile, seeds_of=seeds_of), (), tmp_path))
        trained = {job.name for job in jobs if job.command == "train"}
        assert all(set(job.needs) <= trained for job in jobs)
        return [job.name for job in jobs if job.command == "recl"]

    assert names({}) == ["recl-group1-seed1", "recl-group1-seed2", "recl-group2-seed1"]
    assert names({"lstm": (3,)}) == ["recl-group1-seed1", "recl-group2-seed1"]
    (first, second) = (job for job in table_8.jobs(Setup(profile, (), tmp_path)) if job.name.startswith("recl-group1"))
    assert {"lstm-seed2", "qrnn-seed2"} < set(second.needs)
    assert first.overrides[-2:] == ("seed=1", "position_seed=1")
    assert second.overrides[-2:] == ("seed=2", "position_seed=2")


def test_finished_seeds_are_shown_once_the_first_is(finished: Setup) -> None:
    outcomes = outcomes_of(finished)
    names = {job.name for job in outcomes.jobs}
    some = replace(outcomes, finished=frozenset(names - {"recl-group1-seed3"}))
    table, rows = table_8.section(finished, some).tables
    assert set(table.number("group1-lstm", "loss").by_seed or {}) == {"1", "2"}
    assert (rows.number("recl_order/group1-lstm", "pending").value, rows.rows["guarded/group2-" + OFF]["pending"]) == (
        1,
        None,
    )
    with pytest.raises(Pending, match="recl-group2-seed1"):
        table_8.section(finished, replace(outcomes, finished=frozenset(names - {"recl-group2-seed1"})))


OFF = "no_recurrence-relative-full_loss"
