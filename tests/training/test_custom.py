"""Callbacks and loggers by `_target_`: they see the run, and change neither its numbers nor its memory."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.training.small_run import logged_rows, stored_memory, tiny_config, train_tiny, trained
from tests.training.test_saving import VARYING
from txl_lightning.errors import Stopped, UserError
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.training.run import run, train

LIGHTNING = "lightning.pytorch.callbacks"


class Keeper(Callback):
    """Has a state that no reader opens without running code."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": np.float64(0.5)}


def test_a_state_that_could_not_be_read_again_ends_the_run_at_its_first_checkpoint(tmp_path):
    config = tiny_config(tmp_path, f"callbacks.keeper={{_target_: {__name__}.Keeper}}")
    with pytest.raises(UserError, match=r"^callbacks: the state of one holds more than"):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").glob("*"))


def test_weights_of_every_n_steps_are_named_by_their_step(tmp_path):
    """By Lightning's ModelCheckpoint: a logged `step` would name them after the last validation, of step 5 or 10."""
    every = "callbacks.keep_weights.every_n_train_steps=4"
    train_tiny(tmp_path, "callbacks=keep_weights", every, "logger=csv")
    folder = tmp_path / "run/checkpoints/keep_weights"
    assert len(list(folder.iterdir())) == 3
    for step in (4, 8, 12):
        assert load_trained(folder / f"step{step}.ckpt").step == step
    resume = f"resume={folder / 'step4.ckpt'}"
    with pytest.raises(UserError, match=r"resume=.*step4.ckpt: holds weights only"):
        train_tiny(tmp_path, resume, name="other")


def test_early_stopping_ends_the_run_which_keeps_its_end(tmp_path, capsys):
    config = tiny_config(tmp_path, "trainer.max_steps=40")
    stopping = {"monitor": "val/nll", "min_delta": 100, "patience": 1}
    config.callbacks["stopping"] = {
        "_target_": f"{LIGHTNING}.EarlyStopping",
        **stopping,
    }
    (line, *_) = run(config, tmp_path / "run")
    why = "EarlyStopping (Monitored metric val/nll did not improve in the last 1 records. Best score: "
    assert f" after 10 steps, ended by {why}" in line  # validated every 5 steps
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["ended_by"].startswith(why)
    config.resume = "auto"
    config.trainer.max_steps = 60
    assert train(config, tmp_path / "run") | VARYING == metrics | VARYING
    said = "ended this run, which is evaluated again; resume=CHECKPOINT trains on"
    assert said in capsys.readouterr().err


WATCHING = {
    "LearningRateMonitor": {},
    "DeviceStatsMonitor": {},
    "RichModelSummary": {},
    "EarlyStopping": {"monitor": "val/nll", "patience": 100},
    "Timer": {"duration": {"days": 1}},
}


class Noting(Callback):
    """Writes the losses that Lightning hands to callbacks."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, *batch: Any
    ) -> None:
        loss = outputs["loss"]
        assert not loss.requires_grad  # a graph would keep the memory before the step alive
        assert torch.equal(loss, pl_module.loss)
        with self.file.open("a") as file:
            file.write(f"{float(loss)}\n")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.slow
def test_callbacks_that_watch_change_no_bit(tmp_path, devices):
    """All of them, with two loggers, stopped by a signal at step 7 and resumed, on one and on two ranks."""
    words = (f"trainer.devices={devices}", "trainer.log_every_n_steps=3")
    config = tiny_config(tmp_path, *words, "logger=csv")
    second = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "second"}
    config.logger.each["second"] = second
    for name, options in WATCHING.items():
        config.callbacks[name] = {
            "_target_": f"{LIGHTNING}.{name}",
            **options,
        }
    seen = tmp_path / "seen"
    config.callbacks["noting"] = {
        "_target_": f"{__name__}.Noting",
        "file": str(seen),
    }
    config.callbacks["stopper"] = {
        "_target_": f"{__name__}.Stopper",
        "step": 7,
    }
    with pytest.raises(Stopped):
        train(config, tmp_path / "run")
    config.callbacks["stopper"] = None
    config.resume = "auto"
    train(config, tmp_path / "run")
    memories = []
    for folder in (tmp_path, trained(*words)):
        memories.append(stored_memory(folder / "run/checkpoints/last.ckpt").states)
    assert torch.equal(*memories)
    assert len(seen.read_text().split()) == 12 * devices
    for name in ("csv", "second"):
        rows = logged_rows(tmp_path / "run" / name)
        assert [row["step"] for row in rows if "train/nll" in row] == ["3", "6", "9", "12"]
        assert [row["step"] for row in rows if "lr-Adam" in row][-3:] == ["5", "8", "11"]


class Stopper(Callback):
    """Sends SIGTERM to its process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.is_global_zero:
            signal.raise_signal(signal.SIGTERM)


def test_a_disabled_run_of_wandb_writes_none(tmp_path):
    train_tiny(tmp_path, "logger=wandb", "logger.mode=disabled")
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 12
    assert not (tmp_path / "run/wandb").exists()
