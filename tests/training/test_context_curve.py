"""Loss by context during training: correct, logged, and without effect on the training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.evaluation.kept_figures import curves, kept_figures
from tests.training.small_run import logged_rows, tiny_config, trained
from txl_lightning.config.lengths import trained_clamp
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.evaluation.trained import load_trained, read_file
from txl_lightning.recl.loss_by_context import context_curve
from txl_lightning.recl.positions import position_blocks
from txl_lightning.training.run import train

CONTEXTS = list(range(3, 25, 3))
OPTIONS = ("model.dropout=0.2", "evaluation.max_segments=2", "context_curve.max_context=24")


@pytest.mark.parametrize(
    "arm", ["model=txl_smoke", "encoding=absolute", "model=lstm model.d_model=16"]
)
def test_it_is_the_curve_of_the_weights_at_that_step(tmp_path: Path, arm: str) -> None:
    every = "context_curve.every_n_steps=6"
    config = tiny_config(tmp_path, *OPTIONS, *arm.split(), every, "logger=csv")
    with kept_figures() as figures:
        train(config, tmp_path / "run")

    lines = (tmp_path / "run/context_curve.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    model = load_trained(tmp_path / "run/checkpoints/last.ckpt").model
    tokens = StreamsDataModule(config.data, config.evaluation).corpus.splits["valid"]
    positions, blocks = position_blocks(len(tokens), len(tokens) - 24, CONTEXTS)
    how = {"clamp_len": trained_clamp(config), "blocks": blocks, "bootstrap": 0}
    expected = context_curve(model, tokens, positions, CONTEXTS, 8, **how)
    assert [(row["steps"], row["contexts"]) for row in rows] == [(6, CONTEXTS), (12, CONTEXTS)]
    assert rows[1]["nll"] == pytest.approx(expected.nll, rel=1e-6)
    assert rows[1]["nll_standard_error"] == pytest.approx(expected.standard_error, rel=1e-5)
    assert rows[1]["bpb"] == pytest.approx([nll / math.log(2) for nll in expected.nll], rel=1e-6)
    for r, recl in expected.recl.items():
        assert rows[1]["recl"][str(r)]["value"] == recl.value
    logged = [row for row in logged_rows(tmp_path / "run/csv") if "context/bpb/24" in row]
    assert [(row["step"], float(row["tokens"])) for row in logged] == [("6", 192), ("12", 384)]
    last = {name: float(value) for name, value in logged[1].items()}
    for c, bpb in zip(CONTEXTS, rows[1]["bpb"], strict=True):
        assert last[f"context/bpb/{c}"] == pytest.approx(bpb)
    for r, recl in rows[1]["recl"].items():
        assert (last[f"recl/{r}"], last[f"recl/{r}/guarded"]) == (recl["value"], recl["guarded"])
    (axes,) = figures["context_curve.png"].axes
    for i, c in enumerate(CONTEXTS):
        assert curves(axes)[f"{c} tokens"][1] == [row["bpb"][i] for row in rows]


@pytest.mark.full
def test_one_of_two_processes_logs_it(tmp_path: Path) -> None:
    options = (*OPTIONS, "model.dropout=0", "context_curve.every_n_steps=6")
    rows = []
    for devices in (1, 2):
        train(
            tiny_config(tmp_path, *options, f"trainer.devices={devices}"), tmp_path / f"{devices}"
        )
        rows.append(
            [
                *map(
                    json.loads,
                    (tmp_path / f"{devices}/context_curve.jsonl").read_text().splitlines(),
                )
            ]
        )
    assert len(rows[1]) == 2
    for one, two in zip(*rows, strict=True):  # losses: RECL compares them, which rounding decides
        assert two["nll"] == pytest.approx(one["nll"], rel=1e-4)


def test_the_training_does_not_notice(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, *OPTIONS, "context_curve.every_n_steps=3"), tmp_path / "with")
    runs = (tmp_path / "with", trained(*OPTIONS) / "run")
    ours, theirs = (read_file(run / "checkpoints/last.ckpt")["state_dict"] for run in runs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert [(run / "context_curve.jsonl").exists() for run in runs] == [True, False]
