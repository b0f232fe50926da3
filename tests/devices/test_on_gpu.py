"""Tests on a GPU: results of the CPU, no waiting in a step, skipped steps. `pytest -m gpu` selects them."""

from __future__ import annotations

import json
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from tests.devices.arms import ARMS, B, T, make, tokens
from tests.model.tiny_model import score_segments
from tests.training.small_run import tiny_config
from txl_lightning import CachedTransformerXL
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation.losses import stream_losses
from txl_lightning.model.inference.cached import can_cache
from txl_lightning.model.inference.generation import generate
from txl_lightning.ranks import Ranks
from txl_lightning.recl.windows import window_losses, window_reader
from txl_lightning.training.callbacks import StopSignals
from txl_lightning.training.run import build, fit, quiet_libraries, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

CORPUS = np.arange(200) % 30
GPU = ("trainer=gpu", "trainer.val_every_n_steps=12", "checkpoint.every_n_steps=12")


@pytest.mark.parametrize("arm", ARMS)
def test_losses_and_gradients_are_those_of_the_cpu(arm):
    model = make(arm).eval()
    stream = torch.cat([tokens(), tokens()], dim=1)
    losses = []
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        nll_BT, _ = score_segments(model, stream.to(device), T)
        losses.append(nll_BT.detach().cpu())
        if "lstm" not in arm:  # cuDNN has no backward in evaluation mode
            nll_BT.mean().backward()
            # Copies, because `model.to` moves gradients too.
            found = [p.grad.to("cpu", copy=True) for p in model.parameters() if p.grad is not None]
            gradients.append(found)
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    if gradients:
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("arm", ARMS)
def test_evaluation_recl_and_generation_are_those_of_the_cpu(arm):
    model = make(arm).eval()
    streams = Streams(CORPUS, B, T)
    results = {}
    for device in ("cpu", "cuda"):
        model.to(device)
        found = [stream_losses(model, streams).nll]
        if can_cache(model):
            found.append(stream_losses(CachedTransformerXL(model), streams).nll)
        found.append(
            window_losses(
                window_reader(model, trained_len=T),
                CORPUS,
                np.arange(50, 60),
                [2, 4, 6],
            )
        )
        results[device] = found
    for one, other in zip(*results.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    if getattr(model.config, "mem_len", 1):
        assert len(list(generate(model, tokens("cuda"), 3))) == 3


class ErrorOfWaiting(L.Callback):
    """Lets every wait for the GPU raise, from the start of step 4 to the start of step 9."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 in (4, 9):
            torch.cuda.set_sync_debug_mode("error" if trainer.global_step + 1 == 4 else "default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "overrides", [(), ("encoding=shaw",), ("optimizer=muon",), ("trainer.precision=32-true",)]
)
def test_no_step_without_a_log_entry_waits(overrides, tmp_path):
    try:
        with quiet_libraries():
            run = build(
                tiny_config(tmp_path, *GPU, *overrides),
                tmp_path / "run",
                Ranks(),
                StopSignals(Ranks()),
            )
            run.trainer.callbacks.append(ErrorOfWaiting())
            fit(run)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_run_on_a_gpu_ends_as_on_the_cpu(tmp_path):
    options = ("trainer.precision=32-true", "model.dropout=0")
    on_cpu = train(tiny_config(tmp_path, *options), tmp_path / "a")
    on_gpu = train(
        tiny_config(tmp_path, *options, GPU[0]),
        tmp_path / "b",
    )
    assert on_gpu["val/nll"] == pytest.approx(on_cpu["val/nll"], rel=1e-3)
    assert json.loads((tmp_path / "b/metrics.json").read_text()) == on_gpu
