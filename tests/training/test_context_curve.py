"""Loss by context during training: correct, logged, and without effect on the training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation.kept_figures import curves, kept_figures
from tests.training.small_run import logged_rows, tiny_config, train_tiny, trained
from txl_lightning import compose
from txl_lightning.config.lengths import trained_clamp
from txl_lightning.config.schemas import Config
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
def test_it_is_the_curve_of_the_weights_at_that_step(tmp_path, arm):
    every = "context_curve.every_n_steps=6"
    config = tiny_config(
        tmp_path,
        *OPTIONS,
        *arm.split(),
        every,
        "logger=csv",
    )
    with kept_figures() as figures:
        train(config, tmp_path / "run")

    first, last = rows_of(tmp_path / "run")
    expected = measured(config, tmp_path / "run/checkpoints/last.ckpt")
    assert (first["steps"], last["steps"]) == (6, 12)
    rows = [row for row in logged_rows(tmp_path / "run/csv") if "context/bpb/24" in row]
    assert [row["step"] for row in rows] == ["6", "12"]
    logged = {name: float(value) for name, value in rows[1].items()}
    assert logged["tokens"] == 384
    for r, length in expected["recl"].items():
        assert last[f"recl/{r}"] == length["value"] == logged[f"recl/{r}"]
        assert logged[f"recl/{r}/guarded"] == length["guarded"]
    (axes,) = figures["context_curve.png"].axes
    for c, nll in zip(CONTEXTS, expected["nll"], strict=True):
        name = f"context/bpb/{c}"
        assert last[name] == pytest.approx(nll / math.log(2), rel=1e-6)
        assert logged[name] == pytest.approx(last[name])
        assert curves(axes)[f"{c} tokens"][1] == [first[name], last[name]]


@pytest.mark.parametrize(
    "profile",
    ["laptop", "night", "gpu_short", "gpu", "paper"],
)
def test_it_is_measured_by_default_from_the_laptop_profile_on(profile):
    config = compose(f"profile={profile}")
    every = config.context_curve.every_n_steps
    assert every is not None
    assert every <= config.trainer.max_steps


def rows_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "context_curve.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def measured(config: Config, checkpoint: Path) -> dict[str, Any]:
    """Measure the curve of a checkpoint at the positions of its run."""
    tokens = StreamsDataModule(config.data, config.evaluation).corpus.splits["valid"]
    positions, blocks = position_blocks(
        len(tokens),
        len(tokens) - 24,
        CONTEXTS,
    )
    model = load_trained(checkpoint).model
    return context_curve(
        model,
        tokens,
        positions,
        CONTEXTS,
        trained_len=8,
        clamp_len=trained_clamp(config),
        blocks=blocks,
        bootstrap=0,
    )


def test_the_training_does_not_notice(tmp_path):
    train_tiny(tmp_path, *OPTIONS, "context_curve.every_n_steps=3")
    ours = read_file(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    theirs = read_file(trained(*OPTIONS) / "run/checkpoints/last.ckpt")["state_dict"]
    torch.testing.assert_close(
        ours,
        theirs,
        rtol=0,
        atol=0,
    )
    assert (tmp_path / "run/context_curve.jsonl").exists()
    assert not (trained(*OPTIONS) / "run/context_curve.jsonl").exists()
