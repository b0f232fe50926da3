"""Loss by context while training: right, logged, and without a trace in the training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.recl.loss_by_context import context_curve
from txl_lightning.evaluation.scoring.windows import evenly_spaced
from txl_lightning.runs.storage import read_file
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

OPTIONS = (
    "model.dropout=0.2",
    "evaluation.max_segments=2",
    "context_curve.first_context=2",
    "context_curve.step=2",
    "context_curve.max_context=8",
    "context_curve.n_positions=10",
)


@pytest.mark.parametrize("arm", [(), ("encoding=absolute",), ("model=lstm", "model.d_model=16")], ids=str)
def test_it_is_the_curve_of_the_weights_at_that_step(tmp_path: Path, arm: tuple[str, ...]) -> None:
    config = tiny_config(tmp_path, *OPTIONS, *arm, "context_curve.every_n_steps=6", "logger=csv")
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/context_curve.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [6, 12]
    model = load_trained(tmp_path / "run/checkpoints/last.ckpt").model
    tokens = StreamsDataModule(config.data, config.evaluation).corpus.splits["valid"]
    positions = evenly_spaced(len(tokens), 10, 8)
    expected = context_curve(model, tokens, positions, [2, 4, 6, 8], trained_len=8, bootstrap=0)
    assert rows[1]["nll"] == pytest.approx(expected.nll, rel=1e-5)
    assert rows[1]["recl"]["0.1"]["value"] == expected.recl[0.1].value
    logged = [
        row for row in csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()) if row["context/bpc/8"]
    ]
    assert [(row["step"], float(row["recl/1.0"]) > 0) for row in logged] == [("6", True), ("12", True)]


def test_the_training_does_not_notice(tmp_path: Path) -> None:
    weights = []
    for name, every in (("with", "3"), ("without", "null")):
        train(tiny_config(tmp_path, *OPTIONS, f"context_curve.every_n_steps={every}"), tmp_path / name)
        weights.append(read_file(tmp_path / name / "checkpoints/last.ckpt")["state_dict"])
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not (tmp_path / "without/context_curve.jsonl").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("context_curve.max_context=100000", "context_curve.max_context=100000: must be below the"),
        ("context_curve.step=0", "context_curve.step=0: must be an integer >= 1"),
        ("context_curve.fractions=[2]", "context_curve.fractions"),
        ("context_curve.every_n_steps=0", "context_curve.every_n_steps=0: must be an integer >= 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(OptionError) as error:
        train(tiny_config(tmp_path, *OPTIONS, "context_curve.every_n_steps=5", override), tmp_path / "run")
    assert str(error.value).startswith(words)
    assert not (tmp_path / "run").exists()
