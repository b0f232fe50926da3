"""Callbacks and loggers by `_target_`: they see the run, and change neither its numbers nor its memory."""

from __future__ import annotations

import builtins
import csv
import json
from pathlib import Path
from types import MethodType
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.in_process import run_txl
from tests.training.small_run import stored_memory, tiny_config, trained
from txl_lightning.command_line.hydra_app import literal
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import UserError
from txl_lightning.training.run import train

LIGHTNING = "lightning.pytorch.callbacks"


class Watcher(Callback):
    """Notes the last step that it saw in a file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        Path(self.file).write_text(str(trainer.global_step))


def test_callbacks_see_every_step_and_change_neither_losses_nor_memory(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [
        {"_target_": f"{__name__}.Watcher", "file": f"{tmp_path}/seen"},
        {"_target_": f"{LIGHTNING}.EarlyStopping", "monitor": "val/bpb", "patience": 100},
    ]
    train(config, tmp_path / "run")
    assert (tmp_path / "seen").read_text() == "12"
    plain = trained() / "run"
    ours, theirs = (json.loads((folder / "metrics.json").read_text()) for folder in (tmp_path / "run", plain))
    assert {name: ours[name] for name in ours if "nll" in name} == {n: theirs[n] for n in theirs if "nll" in n}
    last = "checkpoints/last.ckpt"
    torch.testing.assert_close(
        stored_memory(tmp_path / "run" / last).states, stored_memory(plain / last).states, rtol=0, atol=0
    )


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


class Breaker(Callback):
    """Raises in a hook."""

    def __init__(self, hook: str, error: str) -> None:
        def hooked(self: Breaker, *_: Any, **__: Any) -> None:
            raise getattr(builtins, error)(*([0] if error == "SystemExit" else ["it broke\nhere"]))

        setattr(self, hook, MethodType(hooked, self))


@pytest.mark.parametrize(("hook", "error"), [
    *(("on_train_batch_end", error) for error in ("ValueError", "OSError", "SystemExit", "KeyboardInterrupt")),
    *((hook, "SystemExit") for hook in ("setup", "state_dict", "on_test_end")),
])  # fmt: skip
def test_a_callback_that_raises_is_named(tmp_path: Path, hook: str, error: str) -> None:
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [{"_target_": f"{__name__}.Breaker", "hook": hook, "error": error}]
    what = f"{error} {0 if error == 'SystemExit' else 'it broke'}"
    with pytest.raises(UserError, match=rf"^trainer.callbacks: Breaker raised {what} \({__file__}, line \d+\)$"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run/metrics.json").exists()


def test_early_stopping_ends_the_run_at_the_validation_that_is_not_better(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "trainer.max_steps=40")
    given = {"_target_": f"{LIGHTNING}.EarlyStopping", "monitor": "val/nll", "min_delta": 100, "patience": 1}
    config.trainer.callbacks = [given]
    assert train(config, tmp_path / "run")["steps"] == 10  # the second of those every 5 steps


UNFIT = (
    ({"_target_": f"{LIGHTNING}.EMAWeightAveraging"}, "would save other weights than those that the memory comes from"),
    ({"_target_": f"{LIGHTNING}.ModelCheckpoint"}, "is not needed: checkpoint.every_n_steps"),
    ({"_target_": f"{LIGHTNING}.EarlyStopping", "monitor": "val/loss"}, "must monitor one of val/nll, val/bpb"),
    ({"_target_": f"{LIGHTNING}.EarlyStopping", "nosuch": 1}, "EarlyStopping: cannot be made: TypeError: "),
    ({"_target_": "os.mkdir", "path": "made"}, "trainer.callbacks=os.mkdir: is no Lightning Callback"),
    ({"monitor": "val/nll"}, "trainer.callbacks=None: must be {_target_: MODULE.CLASS, …}"),
    ({"_target_": f"{LIGHTNING}.LearningRateMonitor"}, "trainer.callbacks: Lightning says: Cannot use `Learning"),
)


@pytest.mark.parametrize(("given", "message"), UNFIT, ids=[message[:30] for _, message in UNFIT])
def test_unfit_callbacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_config(tmp_path)
    config.trainer.callbacks = [given]
    with pytest.raises(UserError) as caught:
        train(config, tmp_path / "run")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_another_logger_gets_the_curves_and_the_configuration(tmp_path: Path) -> None:
    target = "logger._target_=lightning.pytorch.loggers.CSVLogger"
    config = tiny_config(tmp_path, "logger=lightning", target, "trainer.log_every_n_steps=4")
    train(config, tmp_path / "run")
    with (tmp_path / "run/lightning_logs/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["train/nll"]] == ["4", "8", "12"]
    assert [row["step"] for row in rows if row["val/nll"]] == ["5", "10", "12"]
    assert "max_steps: 12" in (tmp_path / "run/lightning_logs/hparams.yaml").read_text()
    config.logger.arguments = {"save_dir": str(tmp_path / "there"), "name": "mine"}
    train(config, tmp_path / "second")
    assert (tmp_path / "there/mine/metrics.csv").is_file()


def test_a_logger_that_cannot_be_made_leaves_the_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "lightning.fabric.loggers.tensorboard"
    monkeypatch.setattr(f"{module}._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(f"{module}._TENSORBOARDX_AVAILABLE", False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.json").write_text("{}")
    with pytest.raises(UserError, match=r"^logger\._target_=.*TensorBoardLogger: cannot be made: ModuleNotFoundError"):
        train(tiny_config(tmp_path, "logger=tensorboard", "resume=replace"), tmp_path / "run")
    assert (tmp_path / "run/metrics.json").read_text() == "{}"


def test_variables_of_wandb_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (LoggerConfig().project, LoggerConfig().mode) == ("txl_lightning", "offline")
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


def test_none_as_sweeps_write_it_is_null() -> None:
    for word in ("data.path=[None, 2,None]", "logger.arguments={a:None}"):
        assert literal(word, ("prompt",)) == word.replace("None", "null")
    assert literal("prompt=None", ("prompt",)) == "prompt='None'"
    for word in ("data.path=None.txt", "data.path='None'"):
        assert literal(word, ("prompt",)) == word
