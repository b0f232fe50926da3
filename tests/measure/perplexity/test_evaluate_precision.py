"""txl evaluate in bfloat16: close to float32, stated, and the difference measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measure.perplexity.scored import result
from tests.measure.small_runs import SmallRuns
from txl_lightning.measure import perplexity as command
from txl_lightning.measure.options import EvaluateOptions
from txl_lightning.measure.perplexity import run

LARGEST = 0.01  # nats; eight bits of mantissa


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("relative", {"cached": False}),
        ("no_memory", {"ext_len": 6, "segment_len": 2}),
        ("al_rfou", {"protocol": "window", "stride": 3}),
        ("shaw_words", {}),
        ("qrnn", {"protocol": "window", "window": 5}),
    ],
)
def test_bfloat16_is_close_to_float32_and_says_how_close(
    runs: SmallRuns, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    exact = result(runs, kind, tmp_path, **options)
    ours = result(runs, kind, tmp_path, losses=True, precision="bf16-mixed", **options)
    assert (exact["evaluation"]["precision"], exact["float32_difference"]) == ("32-true", None)
    assert ours["evaluation"]["precision"] == "bf16-mixed"
    difference = ours["float32_difference"]
    assert 0 < abs(difference["nll"]) < LARGEST
    # The split is shorter than the sample.
    assert difference == {
        "nll": pytest.approx(ours["test"]["nll"] - exact["test"]["nll"], abs=1e-12),
        "tokens": exact["test"]["tokens"],
        "split": "test",
    }
    with np.load(tmp_path / ours["test"]["losses"]) as file:
        assert file["nll"].dtype in (np.float32, np.float64)


@pytest.mark.parametrize(
    ("options", "tokens"), [({}, 32), ({"max_segments": 1}, 16), ({"protocol": "window", "stride": 7}, 21)]
)
def test_the_difference_is_measured_on_a_few_segments(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], tokens: int
) -> None:
    monkeypatch.setattr(command, "SAMPLE_TOKENS", 20)  # segments of 8 tokens in 2 streams
    ours = result(runs, "relative", tmp_path, splits=["valid", "test"], precision="bf16-mixed", **options)
    assert ours["float32_difference"]["tokens"] == tokens
    assert ours["float32_difference"]["split"] == "valid"


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_auto_is_resolved_and_a_line_tells_the_difference(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr("txl_lightning.runs.bfloat16.fastest_precision", lambda accelerator: precision)
    sweep = {"splits": ["valid", "test"], "attention_lengths": [4], "select_on": "valid"}
    ours = result(runs, "relative", tmp_path, precision="auto", **sweep)
    rows = [ours, ours["valid"]["sweep"]["init"], ours["test"]["selected"]["best"]]
    assert [row["evaluation"]["precision"] for row in rows] == [precision] * 3
    lines = run(EvaluateOptions(runs.checkpoint("relative"), splits=["test"], precision="auto"), tmp_path)
    if precision == "bf16-mixed":
        difference = json.loads((tmp_path / "evaluation.json").read_text())["float32_difference"]
        where = f"the first {difference['tokens']:,} tokens of test"
        assert lines[1:] == [f"bf16-mixed: nll {difference['nll']:+.5f} beside float32 on {where}"]
    else:
        assert len(lines) == 1
