"""Differences of effective context lengths: over seeds, with lengths beyond the grid; and the seeds of each group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import mark
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_8
from experiments.tables.table_8 import Name

OURS = (1, "Transformer-XL")
QRNN = (1, "QRNN")
LSTM = (1, "LSTM")


def model(*lengths: int, beyond: bool = False) -> dict[int, dict[str, Any]]:
    """Return the entries of a model by seed; the length of the last one may lie beyond the grid."""
    by_seed = {}
    for seed, length in enumerate(lengths, 1):
        is_bound = beyond and seed == len(lengths)
        by_seed[seed] = {"recl": {"0.1": {"value": length, "at_least": is_bound}}}
    return by_seed


@pytest.mark.parametrize(
    ("lengths", "beyond", "ends", "sign"),
    [
        ((192, 64), (False, False), (True, True), "✓"),
        ((320, 64), (True, False), (True, False), "✓"),
        ((192, 320), (False, True), (False, True), "✗"),
        ((320, 320), (True, True), (False, False), "–"),
        ((320, 320), (True, False), (True, False), "≈"),
    ],
)
def test_a_length_beyond_the_grid(
    lengths: tuple[int, int], beyond: tuple[bool, bool], ends: tuple[bool, bool], sign: str
) -> None:
    """Three seeds; ours is a step of 32 longer with the first one."""
    ours, theirs = lengths
    own = model(
        ours + 32,
        ours,
        ours,
        beyond=beyond[0],
    )
    other = model(theirs, theirs, theirs, beyond=beyond[1])
    (row,) = table_8.differences(
        {OURS: own, QRNN: other},
        [OURS, QRNN],
        "value",
    )
    mean = ours - theirs + 32 / 3
    half = 4.302653 * 32 / 3  # t with 2 degrees of freedom; standard error of 32, 0, 0
    assert row.low == (pytest.approx(mean - half) if ends[0] else None)
    assert row.high == (pytest.approx(mean + half) if ends[1] else None)
    assert row.key == "recl_order/group1-qrnn"
    assert mark(row) == sign
    assert row.paper == pytest.approx(100 * (900 / 500 - 1))


def test_the_spread_between_seeds_is_that_of_both_groups() -> None:
    models: dict[Name, Any] = {
        OURS: model(192, 192),
        QRNN: model(64, 96),
        LSTM: model(96, 96),
        (2, "Transformer-XL"): model(192),
        (2, "no recurrence"): model(128),
    }
    rows = table_8.differences(models, list(models), "value")
    sigma = (
        512 / 2
    ) ** 0.5  # two differences of two seeds: 16² + 16² and 0, two degrees of freedom
    for row, effect, n in zip(
        rows,
        (112, 96, 64),
        (2, 2, 1),
        strict=True,
    ):
        assert row.effect == effect
        assert row.high == pytest.approx(effect + 4.302653 * sigma / n**0.5, rel=1e-5)
    models[OURS] = model(192)
    models[QRNN] = model(64)
    models[LSTM] = model(96)
    for row in table_8.differences(models, list(models), "value"):
        assert (row.low, row.high) == (None, None)


@pytest.mark.parametrize(
    ("seeds_of", "measured"),
    [
        ({}, ["group1-seed1", "group1-seed2", "group2-seed1", "group2-seed2"]),
        ({"lstm": (1,)}, ["group1-seed1", "group2-seed1", "group2-seed2"]),
    ],
)
def test_a_group_is_measured_for_the_seeds_that_all_its_models_have(
    seeds_of: dict[str, tuple[int, ...]], measured: list[str], tmp_path: Path
) -> None:
    profile = replace(
        PROFILES["laptop"],
        seeds=(1, 2),
        seeds_of=seeds_of,
    )
    jobs = table_8.jobs(Setup(profile, (), tmp_path))
    trained = {job.name for job in jobs if job.command == "train"}
    recl = [job for job in jobs if job.command == "recl"]
    assert sorted(job.name.removeprefix("recl-") for job in recl) == measured
    for job in recl:
        assert set(job.needs) <= trained
        assert f"position_seed={job.name[-1]}" in job.overrides
