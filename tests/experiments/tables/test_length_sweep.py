"""Attention lengths at evaluation: the shortest that reaches the best, the gain beyond training, what is scored."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.engine.jobs import composed
from experiments.engine.profiles import PROFILES
from experiments.engine.setup import Setup
from experiments.tables.arms import Arm, training
from experiments.tables.shared.length_sweep import LengthSweep, gain_cell, sweep_job


def test_the_gain_of_longer_attention_is_over_the_best_that_training_had() -> None:
    losses = {32: 2.0, 64: 1.9, 96: 1.7, 128: 1.7004}
    run = LengthSweep(init=1.85, trained=64, losses=losses, tolerance=0.001, tokens=1, limit=None)
    assert run.gain_beyond_training == pytest.approx(0.15)
    assert (run.best, run.attention_length) == (1.7, 96)
    limited = replace(run, losses={32: 2.0, 64: 1.9}, limit=64)
    assert limited.gain_beyond_training is None
    assert (limited.best, limited.attention_length) == (1.85, 64)
    assert gain_cell({1: limited}, "bpc") is None


def test_half_loss_without_recurrence_is_scored_where_it_was_trained(tmp_path: Path) -> None:
    setup = Setup(PROFILES["laptop"], (), tmp_path)
    full, half = (composed(training(Arm(False, "absolute", loss), 1, setup).overrides) for loss in ("full", "half"))
    assert (full.evaluation.segment_len, full.evaluation.ext_len) == (32, None)
    assert (half.evaluation.segment_len, half.evaluation.ext_len) == (16, 16)
    spans = [c.evaluation.segment_len * (c.evaluation.max_segments or 0) for c in (full, half)]
    assert spans[0] == spans[1]
    sweep = sweep_job(training(Arm(False, "relative", "half"), 1, setup), setup)
    assert {"ext_len=0", "segment_len=32", "max_segments=50"} <= set(sweep.overrides)
