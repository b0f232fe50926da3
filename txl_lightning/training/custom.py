"""Loggers and callbacks of Lightning, or of the user, made from `_target_`, the dotted name of their class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError, require
from txl_lightning.runs.metrics import loss_metrics

UNFIT = {  # and what to use
    "WeightAveraging": "would save other weights than those that the memory comes from",
    "StochasticWeightAveraging": "would end with other weights than those that the memory comes from",
    "Checkpoint": "is not needed: checkpoint.every_n_steps, checkpoint.keep_every_n_steps",
    "ProgressBar": "is not needed: trainer.progress_bar",
    "GradientAccumulationScheduler": "is not needed: trainer.column_chunks",
    "BatchSizeFinder": "would train steps that the memory keeps: set data.batch_size",
    "LearningRateFinder": "would train steps that the memory keeps: txl train -m optimizer.lr=1e-3,2e-3",
    "ModelPruning": "would rename weights, so that no checkpoint could be read",
}


def custom_callbacks(config: Config) -> list[Callback]:
    """Return the callbacks of `trainer.callbacks`.

    Raises:
        OptionError: one cannot be made, does not fit, or monitors something else than a loss of validation.
    """
    made: list[Callback] = []
    monitored = [f"val/{name}" for name in loss_metrics(0.0, config.data.level)]
    for given in config.trainer.callbacks:
        callback = _make(given, "trainer.callbacks", Callback)
        shown, monitor = f"[{given}]", getattr(callback, "monitor", None)
        for name, reason in UNFIT.items():
            require(not isinstance(callback, getattr(of_lightning, name)), "trainer.callbacks", shown, reason)
        allowed = f"must monitor one of {', '.join(monitored)}"
        require(monitor is None or monitor in monitored, "trainer.callbacks", shown, allowed)
        made.append(callback)
    return made


def custom_logger(config: Config, directory: Path) -> Logger:
    """Return the logger of `logger._target_`.

    Raises:
        OptionError: it cannot be made.
    """
    target, arguments = config.logger._target_, config.logger.arguments or {}
    require(isinstance(arguments, dict), "logger.arguments", arguments, "must be {NAME: VALUE, …}")
    return _make({**arguments, "_target_": target}, "logger._target_", Logger, save_dir=directory, version="")


def _make(given: Any, option: str, kind: type, **defaults: Any) -> Any:
    """Return an object of the class `given["_target_"]`; `defaults` are arguments that it has if it takes them."""
    shown = given.get("_target_") if isinstance(given, Mapping) else given
    require(isinstance(given, Mapping) and "." in str(shown), option, shown, "must be {_target_: MODULE.CLASS, …}")
    module, _, name = str(shown).rpartition(".")
    try:
        target = getattr(import_module(module), name)
        require(
            isinstance(target, type) and issubclass(target, kind), option, shown, f"is no Lightning {kind.__name__}"
        )
        taken = signature(target).parameters
        arguments = {name: value for name, value in defaults.items() if name in taken}
        return target(**{**arguments, **{name: value for name, value in given.items() if name != "_target_"}})
    except OptionError:
        raise
    except Exception as error:  # of anybody's class
        line = (str(error).splitlines() or [""])[0]
        raise OptionError(option, shown, f"cannot be made: {type(error).__name__}: {line}") from error
