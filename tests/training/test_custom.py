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
from txl_lightning.evaluation.trained import read_file
from txl_lightning.training.run import run, train

LIGHTNING = "lightning.pytorch.callbacks"


class Keeper(Callback):
    """Has a state that no reader opens without running code."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": np.float64(0.5)}


def test_a_state_that_could_not_be_read_again_ends_the_run_at_its_first_checkpoint(
    tmp_path: Path,
) -> None:
    config = tiny_config(tmp_path, f"trainer.callbacks=[{{_target_: {__name__}.Keeper}}]")
    with pytest.raises(UserError, match=r"^trainer\.callbacks: the state of one holds more than"):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").glob("*"))


def test_what_is_no_callback_is_refused_before_it_is_called(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [{"_target_": "os.mkdir", "path": str(tmp_path / "made")}]
    with pytest.raises(UserError, match=r"^trainer.callbacks=os.mkdir: cannot be made"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_a_user_is_named_by_its_step(tmp_path: Path) -> None:
    """Validated after 5 and 10 steps: a logged `step` would be the name of all checkpoints between."""
    config = tiny_config(tmp_path, "logger=csv")
    keep = {"filename": "{step}", "every_n_train_steps": 4, "save_top_k": -1}
    keep |= {"_target_": f"{LIGHTNING}.ModelCheckpoint", "dirpath": str(tmp_path / "kept")}
    config.trainer.callbacks = [keep]
    train(config, tmp_path / "run")
    for step in (4, 8, 12):
        assert read_file(tmp_path / f"kept/step={step}.ckpt")["global_step"] == step


def test_early_stopping_ends_the_run_which_keeps_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(tmp_path, "trainer.max_steps=40")
    stopping = {"monitor": "val/nll", "min_delta": 100, "patience": 1}
    config.trainer.callbacks = [{"_target_": f"{LIGHTNING}.EarlyStopping", **stopping}]
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


WATCHING: dict[str, dict[str, Any]] = {
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
def test_callbacks_that_watch_change_no_bit(tmp_path: Path, devices: int) -> None:
    """All of them, with two loggers, stopped by a signal at step 7 and resumed, on one and on two ranks."""
    words = (f"trainer.devices={devices}", "trainer.log_every_n_steps=3")
    config = tiny_config(tmp_path, *words, "logger=csv")
    second = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "second"}
    config.logger.each["second"] = second
    watching = [{"_target_": f"{__name__}.Noting", "file": str(tmp_path / "seen")}]
    for name, options in WATCHING.items():
        watching.append(
            {
                "_target_": f"{LIGHTNING}.{name}",
                **options,
            }
        )
    config.trainer.callbacks = [*watching, {"_target_": f"{__name__}.Stopper", "step": 7}]
    with pytest.raises(Stopped):
        train(config, tmp_path / "run")
    config.trainer.callbacks = watching
    config.resume = "auto"
    train(config, tmp_path / "run")
    checkpoints = [
        tmp_path / "run/checkpoints/last.ckpt",
        trained(*words) / "run/checkpoints/last.ckpt",
    ]
    assert torch.equal(*(stored_memory(path).states for path in checkpoints))
    assert len((tmp_path / "seen").read_text().split()) == 12 * devices
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


def test_another_logger_gets_the_curves_and_the_configuration(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "logger=none", "trainer.log_every_n_steps=4")
    config.logger.each["mine"] = {"_target_": "lightning.pytorch.loggers.CSVLogger"}
    train(config, tmp_path / "run")
    rows = logged_rows(tmp_path / "run/lightning_logs")
    assert [row["step"] for row in rows if "train/nll" in row] == ["4", "8", "12"]
    assert [row["step"] for row in rows if "val/nll" in row] == ["5", "10", "12"]
    assert "max_steps: 12" in (tmp_path / "run/lightning_logs/version_0/hparams.yaml").read_text()


def test_a_logger_that_cannot_be_made_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "lightning.fabric.loggers.tensorboard"
    monkeypatch.setattr(f"{module}._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(f"{module}._TENSORBOARDX_AVAILABLE", False)
    words = r"^logger\.tensorboard=.*TensorBoardLogger: cannot be made: ModuleNotFoundError"
    with pytest.raises(UserError, match=words):
        train_tiny(tmp_path, "logger=tensorboard")
    assert not (tmp_path / "run").exists()


def test_a_disabled_run_of_wandb_writes_none(tmp_path: Path) -> None:
    train_tiny(tmp_path, "logger=wandb", "logger.mode=disabled")
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 12
    assert not (tmp_path / "run/wandb").exists()
