"""Callbacks and loggers by `_target_`: they see the run, and change neither its numbers nor its memory."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.in_process import run_txl
from tests.training.small_run import logged_rows, stored_memory, tiny_config, trained
from tests.training.test_saving import VARYING
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.streams import Batch
from txl_lightning.errors import Stopped, UserError
from txl_lightning.training.run import run, train

LIGHTNING = "lightning.pytorch.callbacks"


class Keeper(Callback):
    """Has a state that `torch.load(weights_only=True)` refuses."""

    def __init__(self, state: str) -> None:
        self.state = {"number": {"best": [np.float64(0.5)], np.int64(3): None}, "array": {"best": np.ones(2)}}[state]

    @property
    def state_key(self) -> str:
        return f"Keeper, {len(self.state)}"

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {"best": [0.5], 3: None}
        assert type(state_dict["best"][0]) is float

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = Path("here")


def test_a_callbacks_state_makes_no_checkpoint_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [{"_target_": f"{__name__}.Keeper", "state": state} for state in ("number", "array")]
    train(config, tmp_path / "run")
    said, left_out = capsys.readouterr().err, "is left out of every checkpoint: a checkpoint holds numbers"
    assert [said.count(f"the state {name} {left_out}") for name in ("Keeper, 1", "mine", "Keeper, 2")] == [1, 1, 0]
    config.resume, config.trainer.max_steps = "auto", 14
    train(config, tmp_path / "run")
    assert capsys.readouterr().err.startswith(f"resume=auto: resuming from {tmp_path}/run/checkpoints/last.ckpt")


STOPPING = {"_target_": f"{LIGHTNING}.EarlyStopping", "monitor": "val/nll", "min_delta": 100, "patience": 1}


def test_early_stopping_ends_the_run_which_keeps_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(tmp_path, "trainer.max_steps=40")
    config.trainer.callbacks = [STOPPING]
    (line, *_) = run(config, tmp_path / "run")
    why = "EarlyStopping (Monitored metric val/nll did not improve in the last 1 records. Best score: "
    assert f" after 10 steps, ended by {why}" in line  # the second validation of those every 5 steps
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["ended_by"].startswith(why)
    config.resume = "auto"
    assert train(config, tmp_path / "run") | VARYING == metrics | VARYING
    config.trainer.max_steps = 60
    train(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert said.count("ended this run, which is evaluated again; resume=CHECKPOINT trains on") == 2
    assert "the learning rate jumps" not in said  # nothing is trained


class Stopping(Callback):
    """Ends a training without a reason."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == 7


def test_a_callback_that_stops_a_run_is_said(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, f"trainer.callbacks=[{{_target_: {__name__}.Stopping}}]")
    metrics = train(config, tmp_path / "run")
    assert (metrics["steps"], metrics["ended_by"]) == (7, "a callback")


def size_of(batch: Batch) -> int:
    """Function of a callback's options."""
    return len(batch.tokens)


SIZE_OF = {"_target_": "hydra.utils.get_method", "path": f"{__name__}.size_of"}
WATCHING: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("LearningRateMonitor", "DeviceStatsMonitor", "ModelSummary", "RichModelSummary")},
    "EarlyStopping": {"monitor": "val/nll", "patience": 100, "verbose": True},
    "Timer": {"duration": {"days": 1}},
    "ThroughputMonitor": {"batch_size_fn": SIZE_OF, "window_size": 2},
    "LambdaCallback": {"on_train_batch_end": {"_target_": f"{__name__}.Noting", "file": "FILE"}},
}


class Noting:
    """Object within a callback's options: writes the losses that Lightning hands to callbacks."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, trainer: L.Trainer, module: Any, outputs: Any, *batch: Any) -> None:
        assert not outputs["loss"].requires_grad  # a graph would keep the memory before the step alive
        assert torch.equal(outputs["loss"], module.loss)
        with Path(self.file).open("a") as file:
            file.write(f"{float(outputs['loss'])}\n")


@pytest.mark.filterwarnings("ignore:When using the `ThroughputMonitor`")  # which counts no FLOPs here
@pytest.mark.parametrize("devices", [1, 2])
def test_callbacks_that_watch_change_no_bit(tmp_path: Path, devices: int, caplog: Any, monkeypatch: Any) -> None:
    """All of them, with two loggers, stopped by a signal at step 7 and resumed, on one and on two ranks."""
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "handlers", [caplog.handler])  # Lightning has its own
    words = (f"trainer.devices={devices}", "trainer.log_every_n_steps=3")
    config = tiny_config(tmp_path, *words, "logger=csv")
    config.logger.each["second"] = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "second"}
    named = {name: {"_target_": f"{LIGHTNING}.{name}", **options} for name, options in WATCHING.items()}
    watching = [*json.loads(json.dumps(named).replace("FILE", f"{tmp_path}/seen")).values()]
    config.trainer.callbacks = [*watching, {"_target_": f"{__name__}.Stopper", "step": 7}]
    with pytest.raises(Stopped):
        train(config, tmp_path / "run")
    config.trainer.callbacks, config.resume = watching, "auto"
    train(config, tmp_path / "run")
    runs = (tmp_path / "run", trained(*words) / "run")
    ours, theirs = (json.loads((run / "metrics.json").read_text()) for run in runs)
    assert {n: ours[n] for n in ours if "nll" in n} == {n: theirs[n] for n in theirs if "nll" in n}
    if devices == 1:  # else the processes say it
        assert all(text in caplog.text for text in ("Total params", "Metric val/nll improved"))
    assert torch.equal(*(stored_memory(run / "checkpoints/last.ckpt").states for run in runs))
    assert len((tmp_path / "seen").read_text().split()) == 12 * devices
    for name in ("csv", "second"):
        rows = logged_rows(tmp_path / "run" / name)
        assert [row["step"] for row in rows if "train/nll" in row] == ["3", "6", "9", "12"]  # before the stop too
        assert [row["step"] for row in rows if float(row.get("lr-Adam", 0)) > 0] == ["2", "5", "8", "11"]


HOOKS = {name for name in dir(Callback) if name[0] != "_" and name != "state_key"}
UNCALLED = {name for name in HOOKS if any(kind in name for kind in ("predict", "sanity", "exception"))}  # none happens


class Recorder(Callback):
    """Notes which of its hooks are called."""

    called: ClassVar[set[str]] = set()


for hook in HOOKS:
    setattr(Recorder, hook, lambda self, *_, _hook=hook, **__: {"called": self.called.add(_hook)})


def test_every_hook_of_a_callback_is_called(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, f"trainer.callbacks=[{{_target_: {__name__}.Recorder}}]")
    for config.trainer.max_steps, config.resume in ((5, None), (6, "auto")):
        train(config, tmp_path / "run")
    assert Recorder.called == HOOKS - UNCALLED


class Stopper(Callback):
    """Sends SIGTERM to its process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.is_global_zero:
            signal.raise_signal(signal.SIGTERM)


def test_another_logger_gets_the_curves_and_the_configuration(tmp_path: Path) -> None:
    target = "logger._target_=lightning.pytorch.loggers.CSVLogger"
    config = tiny_config(tmp_path, "logger=lightning", target, "trainer.log_every_n_steps=4")
    train(config, tmp_path / "run")
    rows = logged_rows(tmp_path / "run/lightning_logs")
    assert [row["step"] for row in rows if "train/nll" in row] == ["4", "8", "12"]
    assert [row["step"] for row in rows if "val/nll" in row] == ["5", "10", "12"]
    assert "max_steps: 12" in (tmp_path / "run/lightning_logs/version_0/hparams.yaml").read_text()
    config.logger.arguments = {"save_dir": str(tmp_path / "there"), "name": "mine"}
    for version, folder in enumerate(("second", "third")):  # in one place for both, where neither replaces the other
        train(config, tmp_path / folder)
        assert (tmp_path / f"there/mine/version_{version}/metrics.csv").is_file()


def test_a_logger_that_cannot_be_made_leaves_the_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "lightning.fabric.loggers.tensorboard"
    monkeypatch.setattr(f"{module}._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(f"{module}._TENSORBOARDX_AVAILABLE", False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.json").write_text("{}")
    with pytest.raises(UserError, match=r"^logger\._target_=.*TensorBoardLogger: cannot be made: ModuleNotFoundError"):
        train(tiny_config(tmp_path, "logger=tensorboard", "resume=replace"), tmp_path / "run")
    assert (tmp_path / "run/metrics.json").read_text() == "{}"


def test_a_second_logger_of_wandb_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "logger=csv")
    config.logger.each["second"] = {"_target_": "lightning.pytorch.loggers.WandbLogger"}
    with pytest.raises(UserError, match=r"^logger\._target_=lightning\.pytorch\.loggers\.WandbLogger: is logger=wandb"):
        train(config, tmp_path / "run")


def test_variables_of_wandb_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (LoggerConfig().project, LoggerConfig().mode) == ("txl_lightning", "offline")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    assert (LoggerConfig().tags, LoggerConfig().mode) == (["a", "b"], "disabled")
    for name in ("PROJECT", "MODE", "RUN_GROUP"):
        monkeypatch.setenv(f"WANDB_{name}", f"my-{name.lower()}")
    shown = run_txl("train", "logger.group=typed", "--help", directory=tmp_path).out
    assert all(line in shown for line in ("project: my-project", "mode: my-mode", "group: typed"))
    refused = run_txl("train", "hydra.run.dir=run", directory=tmp_path)
    assert "logger.mode=my-mode: must be offline, online or disabled (default: the variable WANDB_MODE)" in refused.err


def test_a_disabled_run_of_wandb_writes_none(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "logger=wandb", "logger.mode=disabled"), tmp_path / "run")
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 12
    assert not (tmp_path / "run/wandb").exists()
