"""Differences of effective context lengths: over seeds, with lengths beyond the grid; and the seeds of each group."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import mark
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_8

VALUE = ("RECL", "value", "at_least")


def result(lengths: dict[str, int], beyond: Sequence[str] = ()) -> dict[str, Any]:
    """Return `recl.json` of a seed."""
    recl = {name: {"value": value, "at_least": name in beyond} for name, value in lengths.items()}
    return {"models": [{"name": name, "recl": {"0.1": found}} for name, found in recl.items()]}


@pytest.mark.parametrize(
    ("lengths", "beyond", "ends", "sign"),
    [
        ((192, 64), (), (True, True), "✓"),
        ((320, 64), ("Transformer-XL",), (True, False), "✓"),
        ((192, 320), ("QRNN",), (False, True), "✗"),
        ((320, 320), ("Transformer-XL", "QRNN"), (False, False), "–"),
        ((320, 320), ("Transformer-XL",), (True, False), "≈"),
    ],
)
def test_a_length_beyond_the_grid(lengths: Any, beyond: tuple[str, ...], ends: tuple[bool, bool], sign: str) -> None:
    """Three seeds of group 1, of which the last has the lengths beyond the grid."""
    ours, theirs = lengths
    by_seed = {seed: result({"Transformer-XL": ours + 32 * (seed == 1), "QRNN": theirs}) for seed in (1, 2)}
    by_seed[3] = result({"Transformer-XL": ours, "QRNN": theirs}, beyond)
    (found,) = table_8._differences({1: by_seed}, *VALUE)
    mean = ours - theirs + 32 / 3
    half = 4.302653 * 32 / 3  # t with 2 degrees of freedom; standard error of 32, 0, 0
    expected = (mean - half if ends[0] else None, mean + half if ends[1] else None)
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.key, mark(found)) == ("recl_order/group1-qrnn", sign)
    assert found.paper == pytest.approx(100 * (900 / 500 - 1))


def test_the_spread_between_seeds_is_that_of_both_groups() -> None:
    group_1 = {seed: result({"Transformer-XL": 192, "QRNN": 64 + move, "LSTM": 96}) for seed, move in ((1, 0), (2, 32))}
    group_2 = {1: result({"Transformer-XL": 192, "no recurrence": 128})}
    rows = table_8._differences({1: group_1, 2: group_2}, *VALUE)
    sigma = (512 / 2) ** 0.5  # two differences of two seeds: 16² + 16² and 0, two degrees of freedom
    for found, effect, n in zip(rows, (112, 96, 64), (2, 2, 1), strict=True):
        assert found.effect == effect
        assert found.high == pytest.approx(effect + 4.302653 * sigma / n**0.5, rel=1e-5)
    alone = table_8._differences({1: {1: group_1[1]}, 2: group_2}, *VALUE)
    assert {(one.low, one.high) for one in alone} == {(None, None)}


def test_a_group_is_measured_for_the_seeds_that_all_its_models_have(tmp_path: Path) -> None:
    def names(seeds_of: dict[str, tuple[int, ...]]) -> list[str]:
        jobs = table_8.jobs(Setup(replace(PROFILES["laptop"], seeds=(1, 2), seeds_of=seeds_of), (), tmp_path))
        trained = {job.name for job in jobs if job.command == "train"}
        assert all(set(job.needs) <= trained for job in jobs)
        assert all(f"position_seed={job.name[-1]}" in job.overrides for job in jobs if job.command == "recl")
        return [job.name for job in jobs if job.command == "recl"]

    first, second = ["recl-group1-seed1", "recl-group2-seed1"], ["recl-group1-seed2", "recl-group2-seed2"]
    assert sorted(names({})) == sorted(first + second)
    assert names({"lstm": (1,)}) == ["recl-group1-seed1", "recl-group2-seed1", "recl-group2-seed2"]
