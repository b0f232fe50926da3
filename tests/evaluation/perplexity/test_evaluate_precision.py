"""txl evaluate in bfloat16: close to float32, and stated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.perplexity.scored import result
from tests.evaluation.perplexity.test_evaluate_values import losses
from tests.evaluation.small_runs import SmallRuns

OPTIONS: dict[str, dict[str, Any]] = {
    "relative": {"cached": False},
    "no_memory": {"ext_len": 6, "segment_len": 2},
    "al_rfou": {"protocol": "window", "stride": 3},
    "shaw_words": {},
    "qrnn": {"protocol": "window", "window": 5},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_bfloat16_is_close_to_float32(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    exact = result(runs, kind, tmp_path, **OPTIONS[kind])
    ours = result(runs, kind, tmp_path, losses=True, precision="bf16-mixed", **OPTIONS[kind])
    assert [one["evaluation"]["precision"] for one in (exact, ours)] == ["32-true", "bf16-mixed"]
    assert 0 < abs(ours["test"]["nll"] - exact["test"]["nll"]) < 0.01  # nats; eight bits of mantissa
    assert losses(tmp_path / "losses_test.npz")[0].dtype in (np.float32, np.float64)


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_auto_is_resolved(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr("txl_lightning.runs.hardware.fastest_precision", lambda accelerator: precision)
    sweep = {"splits": ["valid", "test"], "attention_lengths": [4], "select_on": "valid"}
    ours = result(runs, "relative", tmp_path, precision="auto", **sweep)
    rows = [ours, ours["valid"]["sweep"]["init"], ours["test"]["selected"]["best"]]
    assert [row["evaluation"]["precision"] for row in rows] == [precision] * 3
