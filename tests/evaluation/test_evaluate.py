"""`txl evaluate`: the scores of training again, lengths, other texts, progress, precision."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.scored import losses, losses_alone, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import load_corpus
from txl_lightning.evaluation import losses as losses_module
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import LINE_WIDTH, run
from txl_lightning.evaluation.trained import load_trained

UNCACHED = ["compressive", "tokens"]
KINDS = ["characters", "documents", "extended", "al_rfou", "shaw_words", "rope", "alibi", "none"]
KINDS += ["lstm", *UNCACHED]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_scores_what_its_run_did(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    metrics = json.loads((runs.directory(kind) / "metrics.json").read_text())
    ours = result(runs, kind, tmp_path, splits=["valid", "test"])
    assert ours["valid"]["nll"] == pytest.approx(metrics["val/nll"], rel=1e-6)
    assert ours["test"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert ours["evaluation"]["cached"] is (kind not in ("lstm", *UNCACHED))
    del metrics["evaluation"]["streams_start"]
    assert ours["evaluation"].items() >= metrics["evaluation"].items()


LENGTHS = [
    ("characters", {"mem_len": 40}),
    ("relative", {"same_length": True}),
    ("no_memory", {"ext_len": 0}),
    ("lstm", {"segment_len": 16}),
]


@pytest.mark.parametrize(("kind", "given"), LENGTHS)
def test_training_s_lengths_are_printed_beside_others(
    runs: SmallRuns, tmp_path: Path, kind: str, given: dict[str, Any]
) -> None:
    own = result(runs, kind, tmp_path, splits=["valid", "test"])
    assert "init" not in own["test"]
    lines = run(
        EvaluateOptions(runs.checkpoint(kind), block_len=20, **given),
        tmp_path,
    )
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert max(len(line) for line in lines) <= LINE_WIDTH
    for line, split in zip(lines, ("valid", "test"), strict=False):
        values = found[split]
        assert values["init"]["nll"] == pytest.approx(
            own[split]["nll"],
            rel=1e-9,
        )
        unit, words = ("bpc", "character") if "bpc" in values else ("bpb", "byte")
        error = values["standard_error"][unit]
        beside = f"(at training lengths: {values['init'][unit]:.4f})"
        value = f"{values[unit]:.4f} ± {error:.4f} bits per {words}"
        assert line == f"{split}: {value} {beside}"


def test_progress_is_shown(
    runs: SmallRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(losses_module, "PROGRESS_SECONDS", 0.0)
    result(runs, "characters", tmp_path)
    assert re.search(r"test: .* 2/\d+ \[", capsys.readouterr().err)


def test_a_longer_segment_leaves_the_memory_as_it_is(runs: SmallRuns, tmp_path: Path) -> None:
    """Not training's memory and segment, 8 and 8, minus 16 (the rule of the paper's train.py)."""
    given = result(runs, "characters", tmp_path, segment_len=16)["evaluation"]
    assert (given["protocol"], given["mem_len"]) == ("carried", 8)


@pytest.mark.parametrize("ext_len", [0, 5])
def test_losses_are_in_the_order_of_the_text(runs: SmallRuns, tmp_path: Path, ext_len: int) -> None:
    """Three streams, each read alone in segments of 8 tokens."""
    lengths = {"ext_len": ext_len, "mem_len": 0 if ext_len else 8}
    result(runs, "characters", tmp_path, losses=True, batch_size=3, **lengths)
    nll, positions = losses(tmp_path / "losses_test.npz")
    trained = load_trained(runs.checkpoint("characters"))
    model: Any = trained.model.with_lengths(**lengths)
    tokens = torch.from_numpy(load_corpus(trained.config.data).splits["test"].astype(np.int64))
    stream_len = len(tokens) // 3
    expected = []
    for text_1n in tokens[: 3 * stream_len].view(3, 1, stream_len):
        expected += losses_alone(model, text_1n, 8, ext_len)
    assert positions.tolist() == [p for p in range(3 * stream_len) if p % stream_len]
    np.testing.assert_allclose(nll, expected, atol=1e-5)


BFLOAT16 = [
    ("relative", {"cached": False}),
    ("shaw_words", {}),
    ("qrnn", {}),
]


@pytest.mark.parametrize(("kind", "options"), BFLOAT16)
def test_bfloat16_is_close_to_float32(
    runs: SmallRuns, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    exact = result(
        runs,
        kind,
        tmp_path,
        **options,
    )["test"]["nll"]
    ours = result(runs, kind, tmp_path, precision="bf16-mixed", **options)
    assert ours["evaluation"]["precision"] == "bf16-mixed"
    assert 0 < abs(ours["test"]["nll"] - exact) < 0.01  # nats; eight bits of mantissa


def test_auto_is_resolved(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "txl_lightning.evaluation.hardware.fastest_precision", lambda accelerator: "bf16-mixed"
    )
    found = result(runs, "relative", tmp_path, precision="auto")
    assert found["evaluation"]["precision"] == "bf16-mixed"
