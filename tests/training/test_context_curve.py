"""Loss by context during training: correct, logged, and without effect on the training."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch

from tests.measure.kept_figures import curves, kept_figures
from tests.training.small_run import tiny_config
from txl_lightning.config.lengths import trained_clamp
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.errors import OptionError
from txl_lightning.measure.loss_by_context import context_curve, position_blocks
from txl_lightning.measure.options import ReclOptions
from txl_lightning.measure.recl import run as recl
from txl_lightning.runs.storage import read_file
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

CONTEXTS = list(range(1, 9))
OPTIONS = ("model.dropout=0.2", "evaluation.max_segments=2", "context_curve.max_context=8")


@pytest.mark.parametrize(
    "arm",
    [(), pytest.param(("encoding=absolute",), marks=pytest.mark.slow), ("model=lstm", "model.d_model=16")],
    ids=str,
)
def test_it_is_the_curve_of_the_weights_at_that_step(tmp_path: Path, arm: tuple[str, ...]) -> None:
    config = tiny_config(tmp_path, *OPTIONS, *arm, "context_curve.every_n_steps=6", "logger=csv")
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/context_curve.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [6, 12]
    model = load_trained(tmp_path / "run/checkpoints/last.ckpt").model
    tokens = StreamsDataModule(config.data, config.evaluation).corpus.splits["valid"]
    positions, blocks = position_blocks(len(tokens), len(tokens) - 8, CONTEXTS)
    lengths = {"trained_len": 8, "clamp_len": trained_clamp(config)}
    expected = context_curve(model, tokens, positions, CONTEXTS, **lengths, blocks=blocks, bootstrap=0)
    assert rows[1]["nll"] == pytest.approx(expected.nll, rel=1e-5)
    assert rows[1]["nll_standard_error"] == pytest.approx(expected.standard_error, rel=1e-5)
    assert rows[1]["recl"]["0.1"]["value"] == expected.recl[0.1].value
    assert rows[1]["contexts"] == CONTEXTS
    assert rows[1]["bpc"] == pytest.approx([nll / math.log(2) for nll in rows[1]["nll"]])
    logged = [
        row for row in csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()) if row["context/bpc/8"]
    ]
    assert [(row["step"], row["tokens"]) for row in logged] == [("6", "192"), ("12", "384")]
    for row, measured in zip(logged, rows, strict=True):
        shown = {c: float(row[f"context/bpc/{c}"]) for c in CONTEXTS}
        assert shown == pytest.approx(dict(zip(measured["contexts"], measured["bpc"], strict=True)))
        for r, found in measured["recl"].items():
            assert float(row[f"recl/{r}"]) == found["value"]
            assert float(row[f"recl/{r}/guarded"]) == found["guarded"]
        gains = {doubling["from"]: doubling["bits"] for doubling in measured["doublings"]}
        assert {c: float(row[f"context/doublings/{c}"]) for c in (1, 2, 3, 4)} == pytest.approx(gains)
        assert float(row["context/within_1_percent"]) == measured["within_1_percent"]
    assert {r: found["at_least"] for r, found in rows[1]["recl"].items()} == {
        str(r): found.at_least for r, found in expected.recl.items()
    }
    assert rows[1]["share_of_gain"] == pytest.approx(expected.gains["share_of_gain"], abs=1e-3)


@pytest.mark.slow
def test_distances_beyond_training_are_clamped_as_in_recl(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, *OPTIONS, "context_curve.max_context=24", "context_curve.every_n_steps=12")
    assert trained_clamp(config) < 23
    train(config, tmp_path / "run")
    row = json.loads((tmp_path / "run/context_curve.jsonl").read_text())
    checkpoint = str(tmp_path / "run/checkpoints/last.ckpt")
    n = len(StreamsDataModule(config.data, config.evaluation).corpus.splits["valid"]) - 24
    small = {"first_context": 3, "step": 3, "max_context": 24, "n_positions": n, "split": "valid", "bootstrap": 0}
    losses, words = {}, {"nll", "nll_standard_error", "bpc", "doublings", "within_1_percent", "share_of_gain", "recl"}
    assert set(row) == {"steps", "contexts", *words}
    for clamp_len in (None, -1):
        options = ReclOptions([checkpoint], **small, clamp_len=clamp_len)
        options.logger = LoggerConfig(name="none")
        recl(options, tmp_path)
        (entry,) = json.loads((tmp_path / "recl.json").read_text())["models"]
        losses[clamp_len] = entry["nll"]
        assert words <= set(entry)
        assert set(row["recl"]["0.5"]) <= set(entry["recl"]["0.5"])
    assert row["nll"] == pytest.approx(losses[None], rel=1e-7)
    assert row["nll"][7] != pytest.approx(losses[-1][7], rel=1e-6)


def test_the_figure_has_every_measurement(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, *OPTIONS, "context_curve.every_n_steps=3")
    with kept_figures() as figures:
        train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/context_curve.jsonl").read_text().splitlines()]
    (axes,) = figures["context_curve.png"].axes
    assert {name: y for name, (_, y) in curves(axes).items() if y} == {
        f"{c} tokens": [row["bpc"][i] for row in rows] for i, c in enumerate(CONTEXTS)
    }


@pytest.mark.slow
def test_one_of_two_processes_logs_it(tmp_path: Path) -> None:
    options = (*OPTIONS, "model.dropout=0", "context_curve.every_n_steps=6")
    rows = []
    for devices in (1, 2):
        train(tiny_config(tmp_path, *options, f"trainer.devices={devices}"), tmp_path / f"run{devices}")
        lines = (tmp_path / f"run{devices}/context_curve.jsonl").read_text().splitlines()
        rows.append([json.loads(line) for line in lines])
    assert len(rows[1]) == 2
    for one, two in zip(*rows, strict=True):  # losses: RECL compares them, which rounding decides
        assert two["nll"] == pytest.approx(one["nll"], rel=1e-4)


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
        ("context_curve.max_context=7", "context_curve.max_context=7: must be an integer >= 8"),
        ("context_curve.every_n_steps=0", "context_curve.every_n_steps=0: must be an integer >= 1"),
    ],
)
def test_impossible_context_curves_are_refused_before_training(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(OptionError) as error:
        train(tiny_config(tmp_path, *OPTIONS, "context_curve.every_n_steps=5", override), tmp_path / "run")
    assert str(error.value).startswith(words)
    assert not (tmp_path / "run").exists()
