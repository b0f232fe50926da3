"""examples/dynamic_evaluation.py: a measurement of a user's file, whose model learns from what it has scored."""

import json
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.evaluation.scored import result
from tests.evaluation.small_runs import SmallRuns
from tests.in_process import success
from tests.own_guests import forget_guests, no_guests  # noqa: F401 - a fixture


@pytest.mark.usefixtures("no_guests")
def test_the_weights_learn_from_segments_that_are_scored(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rate 0 the loss is the one of `txl evaluate`; the first segment is scored before anything is learned."""
    static = result(runs, "relative", tmp_path)["test"]["nll"]
    monkeypatch.setenv("TXL_GUESTS", str(ROOT / "examples/dynamic_evaluation.py"))
    forget_guests()
    losses = []
    for rate in ("0", "0.3"):
        words = (f"checkpoint={runs.checkpoint('relative')}", f"lr={rate}", "hydra.run.dir=out")
        done = success("dynamic", *words, directory=tmp_path)
        nll = json.loads((tmp_path / "out/dynamic.json").read_text())["nll"]
        assert f"test: {nll:.4f} nats per token" in done.out
        losses.append(nll)
    assert losses[0] == pytest.approx(static, rel=1e-6)
    assert losses[1] < static - 0.1
