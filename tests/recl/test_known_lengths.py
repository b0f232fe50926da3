"""RECL of texts whose effective context is known: of the exact model, and of models trained by the public commands."""

import json
from math import log
from pathlib import Path
from typing import Any

import pytest

from examples.recall_oracle import TEXT
from tests.alone import printed
from tests.docs.pages import ROOT
from tests.recl.small_recl import recl


def test_a_plateau_ends_the_length_and_not_the_context_within_a_percent(tmp_path: Path) -> None:
    (tmp_path / "recall.txt").write_text(TEXT.text(60_000, seed=1))
    options: dict[str, Any] = {
        "models": ["py:examples.recall_oracle.oracle"],
        "data_path": str(tmp_path / "recall.txt"),
        "max_context": 96,
        "n_positions": 500,
        "step": 16,
    }
    (steps,) = recl(
        tmp_path / "steps",
        **options,
        first_context=32,
    )["models"]
    assert {length["value"] for length in steps["recl"].values()} == {48}
    assert {length["guarded"] for length in steps["recl"].values()} == {48}
    error = steps["nll_standard_error"][1]
    assert steps["nll"][1] == pytest.approx(
        TEXT.entropy(48),
        abs=4 * error,
    )
    (plateau,) = recl(
        tmp_path / "plateau",
        **options,
        first_context=16,
    )["models"]
    assert {length["value"] for length in plateau["recl"].values()} == {16}
    assert plateau["within_1_percent"] == steps["within_1_percent"] == 48


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_trained_memory_reaches_the_entropy_and_has_the_known_length(tmp_path: Path) -> None:
    """Commands of the page, with another folder."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    def txl(*words: str) -> dict[str, Any]:
        directory = tmp_path / words[-1].removeprefix("hydra.run.dir=")
        printed("-m", "txl_lightning.cli", *words, "logger=none", directory=tmp_path)
        results = "recl.json" if words[0] == "recl" else "metrics.json"
        found: dict[str, Any] = json.loads((directory / results).read_text())
        return found

    options = ("trainer.num_threads=1", f"data.cache_dir={tmp_path}/cache")
    on = txl("train", "experiment=recall", *options, "hydra.run.dir=on")
    off = txl("train", "experiment=recall", "memory=off", *options, "hydra.run.dir=off")
    assert on["test/bpc"] <= 1.15 * TEXT.entropy(48) / log(2)
    assert off["test/bpc"] == pytest.approx(
        TEXT.entropy(16) / log(2),
        rel=0.02,
    )
    checkpoints = "checkpoints=[on/checkpoints/best.ckpt,off/checkpoints/best.ckpt]"
    grid = ("first_context=32", "max_context=96")
    on_recl, off_recl = txl(
        "recl",
        checkpoints,
        "names=[on,off]",
        *grid,
        "hydra.run.dir=recl",
    )["models"]
    assert all(32 <= length["guarded"] <= 64 for length in on_recl["recl"].values())
    assert {length["guarded"] for length in off_recl["recl"].values()} == {32}
    assert on_recl["nll"][1] <= 1.15 * TEXT.entropy(48)
    assert off_recl["nll"][1] == pytest.approx(
        TEXT.entropy(16),
        rel=0.02,
    )
