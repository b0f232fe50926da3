"""A run that was killed or stopped and resumed equals an uninterrupted one."""

from __future__ import annotations

import signal

import pytest

from tests.training.recorded_run import start
from tests.training.twenty_kills import ARMS, OPTIONS, differences, kill_and_compare
from txl_lightning.evaluation.trained import read_file

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


ONE_PROCESS = [
    (11, KILL),
    (30, TERM),
    (56, TERM),
    (61, KILL),
]  # 30 validates, 56 ends an epoch
TWO_RANKS = [
    (27, KILL),
    (33, INT),
    (56, TERM),
]


@pytest.mark.parametrize(
    ("devices", "events"), [(1, ONE_PROCESS), pytest.param(2, TWO_RANKS, marks=pytest.mark.full)]
)
def test_signals_and_kills_change_no_bit(tmp_path, devices, events):
    whole = tmp_path / "whole"
    whole.mkdir()
    options = (*OPTIONS, f"trainer.devices={devices}")
    for i, (at, number) in enumerate(events):
        done = start(tmp_path, *options, at=at, signal=number, rank=i % devices).finish()
        assert done.returncode != 0 or number != KILL
        if number != KILL:
            assert f"stopped by {number.name} after step {at}" in done.stdout, done.stderr
            assert read_file(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == at
        assert not (tmp_path / "run/metrics.json").exists()
    start(tmp_path, *options).succeed()
    start(whole, *options).succeed()
    assert differences(whole / "run", tmp_path / "run") == []


FULL = [pytest.param(arm, marks=pytest.mark.full) for arm in ARMS if arm != "two ranks"]


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param("two ranks", marks=pytest.mark.slow),
        *FULL,
    ],
)
def test_kills_change_no_bit(tmp_path, arm):
    assert kill_and_compare(tmp_path, arm, n_kills=2)
