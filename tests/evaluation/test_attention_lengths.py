"""The attention length chosen on one split (Table 6), column by column, against scores taken one at a time."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.kept_figures import Figures, curves
from tests.evaluation.scored import losses, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation.losses import stream_losses
from txl_lightning.evaluation.trained import load_trained

BOTH = ["test", "valid"]  # their order has no effect


def direct(
    runs: SmallRuns, kind: str, split: str, segment_len: int, ext_len: int = 0, **lengths: Any
) -> float:
    """Return the mean loss of a split at given lengths."""
    trained = load_trained(runs.checkpoint(kind))
    tokens = load_corpus(trained.config.data).splits[split]
    model: Any = trained.model.with_lengths(ext_len=ext_len, **lengths)
    return stream_losses(model, Streams(tokens, 2, segment_len, ext_len)).mean


def metrics(runs: SmallRuns, kind: str) -> dict[str, float]:
    """Return the results of training."""
    return json.loads((runs.directory(kind) / "metrics.json").read_text())


def test_memory_is_varied_with_the_same_attention_length_for_all_tokens(
    runs: SmallRuns, tmp_path: Path
) -> None:
    found = result(
        runs,
        "characters",
        tmp_path,
        splits=BOTH,
        attention_lengths=[24, 4, 12, 12],
    )
    init, *rows = found["valid"]["sweep"]
    assert [row["attention_length"] for row in rows] == [4, 12, 24]
    assert [row["evaluation"]["clamp_len"] for row in rows] == [
        -1,
        -1,
        15,
    ]
    for row in rows:
        lengths = {"mem_len": row["attention_length"], "same_length": True}
        lengths["clamp_len"] = row["evaluation"]["clamp_len"]
        expected = direct(runs, "characters", "valid", 8, **lengths)
        assert row["nll"] == pytest.approx(expected, rel=1e-6)
        assert row["bpc"] == pytest.approx(
            expected / math.log(2),
            rel=1e-6,
        )
    assert init["nll"] == pytest.approx(
        metrics(runs, "characters")["val/nll"],
        rel=1e-6,
    )
    assert init["attention_length"] == 16
    best = found["valid"]["selected"]["best"]
    assert best["nll"] == min(row["nll"] for row in (init, *rows))


def test_absolute_positions_use_extended_context_as_far_as_they_go(
    runs: SmallRuns, tmp_path: Path
) -> None:
    options = {
        "segment_len": 6,
        "ext_len": 0,
        "attention_lengths": [3, 9, 10, 50, 500],
    }
    sweep = result(
        runs,
        "extended",
        tmp_path,
        splits=BOTH,
        **options,
    )["valid"]["sweep"]
    init, *rows = sweep
    assert [row["attention_length"] for row in rows] == [3, 9, 10]
    lengths = [
        (1, 2),
        (2, 7),
        (2, 8),
        (2, 8),
    ]
    for row, (segment_len, ext_len) in zip(
        [*rows, init],
        lengths,
        strict=True,
    ):
        expected = direct(runs, "extended", "valid", segment_len, ext_len, mem_len=0)
        assert row["nll"] == pytest.approx(expected, rel=1e-6)


def test_a_length_is_chosen_on_one_split_for_the_others(
    runs: SmallRuns, tmp_path: Path, drawn: Figures
) -> None:
    lengths = [4, 16, 24]
    found = result(
        runs, "characters", tmp_path, splits=BOTH, attention_lengths=lengths, losses=True
    )
    sweep = found["valid"]["sweep"]
    assert "sweep" not in found["test"]
    selected = found["test"]["selected"]
    length = min(
        sweep,
        key=lambda row: row["bpc"],
    )["attention_length"]
    assert selected["best"]["attention_length"] == length
    assert selected["init"]["evaluation"] == found["evaluation"]
    assert selected["init"]["nll"] == found["test"]["nll"]
    given = {"mem_len": length, "same_length": True, "clamp_len": 15}
    expected = direct(runs, "characters", "test", 8, **given)
    assert selected["best"]["nll"] == pytest.approx(
        expected,
        rel=1e-6,
    )
    for name in ("init", "best"):
        nll, _ = losses(tmp_path / selected[name]["losses"])
        assert selected[name]["nll"] == pytest.approx(
            nll.mean(dtype=float),
            rel=1e-9,
        )
    shown, values = curves(drawn["attention_lengths.svg"].axes[0])["valid"]
    assert shown == lengths
    assert values[-1] == sweep[-1]["bpc"]


def test_a_shorter_sweep_leaves_the_other_splits_whole(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"splits": BOTH, "attention_lengths": [4]}
    found = result(runs, "characters", tmp_path, sweep_tokens=50, **options)
    assert found["valid"]["tokens"] == found["valid"]["sweep"][1]["tokens"] == 48
    tokens = load_corpus(load_trained(runs.checkpoint("characters")).config.data).splits["test"]
    assert found["test"]["tokens"] == len(tokens) - 2 - len(tokens) % 2
