"""Callbacks and loggers by `_target_`: they see the run, and change neither its numbers nor its memory."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.training.small_run import logged_rows, stored_memory, tiny_config, trained
from tests.training.test_saving import VARYING
from txl_lightning.data.streams import Batch
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

    with pytest.raises(
        UserError, match=r"^trainer\.callbacks: a checkpoint holds numbers, text, .*Keeper"
    ):
        train(config, tmp_path / "run")

    assert not list((tmp_path / "run/checkpoints").glob("*"))


@pytest.mark.parametrize("target", ["os.mkdir", "pathlib.Path", f"{LIGHTNING}.Nothing"])
def test_what_is_no_callback_is_refused_before_it_is_called(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "made"
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [{"_target_": target, "path": str(folder)}]

    with pytest.raises(
        UserError, match=f"^trainer.callbacks={target}: (is no Callback|cannot be made)"
    ):
        train(config, tmp_path / "run")

    assert not folder.exists()
    assert not (tmp_path / "run").exists()


def test_a_callback_for_other_modules_is_refused_in_one_line(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [{"_target_": f"{LIGHTNING}.BackboneFinetuning"}]

    with pytest.raises(
        UserError,
        match=r"^trainer.callbacks: one does not fit: .*backbone",
    ):
        train(config, tmp_path / "run")


class Misspelt(Callback):
    """Has a bug of its user."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        print(pl_module.tokenz)


def test_a_bug_of_a_users_callback_keeps_its_traceback(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, f"trainer.callbacks=[{{_target_: {__name__}.Misspelt}}]")

    with pytest.raises(AttributeError, match="tokenz"):
        train(config, tmp_path / "run")


def test_a_checkpoint_of_ones_own_is_named_by_its_step(tmp_path: Path) -> None:
    """Validated after 5 and 10 steps: a logged `step` would be the name of all checkpoints between."""
    config = tiny_config(tmp_path, "logger=csv")
    own = {
        "dirpath": str(tmp_path / "own"),
        "filename": "{step}",
        "every_n_train_steps": 4,
        "save_top_k": -1,
    }
    config.trainer.callbacks = [{"_target_": f"{LIGHTNING}.ModelCheckpoint", **own}]

    train(config, tmp_path / "run")

    assert {path.name for path in (tmp_path / "own").iterdir()} == {
        "step=4.ckpt",
        "step=8.ckpt",
        "step=12.ckpt",
    }
    for path in (tmp_path / "own").iterdir():
        assert path.stem == f"step={read_file(path)['global_step']}"


STOPPING = {
    "_target_": f"{LIGHTNING}.EarlyStopping",
    "monitor": "val/nll",
    "min_delta": 100,
    "patience": 1,
}


def test_early_stopping_ends_the_run_which_keeps_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(tmp_path, "trainer.max_steps=40")
    config.trainer.callbacks = [STOPPING]
    (line, *_) = run(config, tmp_path / "run")
    why = "EarlyStopping (Monitored metric val/nll did not improve in the last 1 records. Best score: "
    assert (
        f" after 10 steps, ended by {why}" in line
    )  # the second validation of those every 5 steps
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["ended_by"].startswith(why)
    config.resume = "auto"
    assert train(config, tmp_path / "run") | VARYING == metrics | VARYING
    config.trainer.max_steps = 60
    train(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert said.count("ended this run, which is evaluated again; resume=CHECKPOINT trains on") == 2


def size_of(batch: Batch) -> int:
    """Function of a callback's options."""
    return len(batch.tokens)


SIZE_OF = {"_target_": "hydra.utils.get_method", "path": f"{__name__}.size_of"}
WATCHING: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "LearningRateMonitor",
            "DeviceStatsMonitor",
            "ModelSummary",
            "RichModelSummary",
        )
    },
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
        assert not outputs[
            "loss"
        ].requires_grad  # a graph would keep the memory before the step alive
        assert torch.equal(outputs["loss"], module.loss)
        with Path(self.file).open("a") as file:
            file.write(f"{float(outputs['loss'])}\n")


@pytest.mark.filterwarnings(
    "ignore:When using the `ThroughputMonitor`"
)  # which counts no FLOPs here
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.slow
def test_callbacks_that_watch_change_no_bit(
    tmp_path: Path, devices: int, caplog: Any, monkeypatch: Any
) -> None:
    """All of them, with two loggers, stopped by a signal at step 7 and resumed, on one and on two ranks."""
    monkeypatch.setattr(
        logging.getLogger("lightning.pytorch"), "handlers", [caplog.handler]
    )  # Lightning has its own
    words = (f"trainer.devices={devices}", "trainer.log_every_n_steps=3")
    config = tiny_config(tmp_path, *words, "logger=csv")
    config.logger.each["second"] = {
        "_target_": "lightning.pytorch.loggers.CSVLogger",
        "name": "second",
    }
    named = {
        name: {"_target_": f"{LIGHTNING}.{name}", **options} for name, options in WATCHING.items()
    }
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
        assert [row["step"] for row in rows if "train/nll" in row] == [
            "3",
            "6",
            "9",
            "12",
        ]  # before the stop too
        assert [row["step"] for row in rows if float(row.get("lr-Adam", 0)) > 0] == [
            "2",
            "5",
            "8",
            "11",
        ]


class Stopper(Callback):
    """Sends SIGTERM to its process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.is_global_zero:
            signal.raise_signal(signal.SIGTERM)


def test_another_logger_gets_the_curves_and_the_configuration(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "logger=none", "trainer.log_every_n_steps=4")
    mine = {"_target_": "lightning.pytorch.loggers.CSVLogger"}
    config.logger.each["mine"] = mine
    train(config, tmp_path / "run")
    rows = logged_rows(tmp_path / "run/lightning_logs")
    assert [row["step"] for row in rows if "train/nll" in row] == ["4", "8", "12"]
    assert [row["step"] for row in rows if "val/nll" in row] == ["5", "10", "12"]
    assert "max_steps: 12" in (tmp_path / "run/lightning_logs/version_0/hparams.yaml").read_text()
    mine.update(save_dir=str(tmp_path / "there"), name="mine")
    for version, folder in enumerate(
        ("second", "third")
    ):  # in one place for both, where neither replaces the other
        train(config, tmp_path / folder)
        assert (tmp_path / f"there/mine/version_{version}/metrics.csv").is_file()


def test_a_logger_that_cannot_be_made_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "lightning.fabric.loggers.tensorboard"
    monkeypatch.setattr(f"{module}._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(f"{module}._TENSORBOARDX_AVAILABLE", False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.json").write_text("{}")
    with pytest.raises(
        UserError,
        match=r"^logger\.tensorboard=.*TensorBoardLogger: cannot be made: ModuleNotFoundError",
    ):
        train(tiny_config(tmp_path, "logger=tensorboard", "resume=replace"), tmp_path / "run")
    assert (tmp_path / "run/metrics.json").read_text() == "{}"


def test_a_disabled_run_of_wandb_writes_none(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "logger=wandb", "logger.mode=disabled"), tmp_path / "run")
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 12
    assert not (tmp_path / "run/wandb").exists()
