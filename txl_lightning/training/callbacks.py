"""Callbacks of Lightning that a config names: made, validated, and named where one ends the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError, UserError, first_line, require
from txl_lightning.runs.metrics import loss_metrics

UNFIT = {  # and what to use
    "WeightAveraging": "would save other weights than those that the memory comes from",
    "StochasticWeightAveraging": "would end with other weights than those that the memory comes from",
    "Checkpoint": "is not needed: checkpoint.every_n_steps, checkpoint.keep_every_n_steps",
    "ProgressBar": "is not needed: trainer.progress_bar",
    "GradientAccumulationScheduler": "is not needed: trainer.stream_groups",
    "BatchSizeFinder": "would train steps that the memory keeps: set data.batch_size",
    "LearningRateFinder": "would train steps that the memory keeps: txl train -m optimizer.lr=1e-3,2e-3",
    "BaseFinetuning": "would add groups to the optimizer, so that no checkpoint could be resumed",
    "SpikeDetection": "cannot load the state that it saves, so that no run could be resumed",
    "ModelPruning": "would rename weights, so that no checkpoint could be read",
}


def custom_callbacks(config: Config) -> list[Callback]:
    """Return the callbacks of `trainer.callbacks`.

    Raises:
        OptionError: one cannot be made, does not fit, has nothing to do in training, or monitors something else than a
            loss of validation.
    """
    made: list[Callback] = []
    for given in config.trainer.callbacks:
        callback = make(given, "trainer.callbacks", Callback)
        shown, monitor = f"[{given}]", getattr(callback, "monitor", None)
        for name, reason in UNFIT.items():
            require(not isinstance(callback, getattr(of_lightning, name)), "trainer.callbacks", shown, reason)
        hooks = [name for name in dir(Callback) if name[0] != "_" and name != "state_key"]
        functions = {name: getattr(getattr(callback, name), "__func__", None) for name in hooks}
        own = [name for name in hooks if functions[name] is not getattr(Callback, name)]
        acts = any(name.startswith("on_") and "predict" not in name for name in own)
        only = not acts and any("predict" in name for name in own)
        require(not only, "trainer.callbacks", shown, "has no effect: a training predicts nothing")
        for hook in hooks:
            function = f"{hook} is no function: {{_target_: hydra.utils.get_method, path: MODULE.FUNCTION}}"
            require(callable(getattr(callback, hook)), "trainer.callbacks", shown, function)
        monitored = [f"val/{name}" for name in loss_metrics(0.0, config.data.level)]
        allowed = f"must monitor one of {', '.join(monitored)}"
        require(monitor is None or monitor in monitored, "trainer.callbacks", shown, allowed)
        made.append(callback)
    return made


def options_win(callbacks: Iterable[Callback], states: Mapping[str, Any]) -> None:
    """Put the options of callbacks into their states in a checkpoint, whose values Lightning's would take instead."""
    for callback in callbacks:
        state: Any = states.get(callback.state_key)
        for name in signature(type(callback)).parameters if isinstance(state, dict) else ():
            if name in state and hasattr(callback, name):
                state[name] = getattr(callback, name)


def make(given: Any, option: str, kind: type, defaults: Mapping[str, Any] | None = None) -> Any:
    """Return an object of the class `given["_target_"]`, made by Hydra, objects within its arguments too.

    Args:
        given: class and arguments.
        option: where it was given, for errors.
        kind: class that the object must have.
        defaults: arguments that it gets if its class takes them and they are not given.

    Raises:
        OptionError: it cannot be made.
    """
    shown, defaults = given.get("_target_") if isinstance(given, Mapping) else given, dict(defaults or {})
    require(isinstance(given, Mapping) and "." in str(shown), option, shown, "must be {_target_: MODULE.CLASS, …}")
    module, _, name = str(shown).rpartition(".")
    try:
        target = getattr(import_module(module), name)
        other = any("'pytorch_lightning." in str(base) for base in getattr(target, "__mro__", ()))
        here = "; it is of pytorch_lightning, here Lightning is lightning.pytorch" if other else ""
        fits = isinstance(target, type) and issubclass(target, kind)
        require(fits, option, shown, f"is no Lightning {kind.__name__}{here}")
        taken = signature(target).parameters
        if "project" in taken and defaults:  # beside a project these name the run, else the experiment
            defaults |= dict.fromkeys(("name", "experiment_name"), defaults["run_name"])
        found = instantiate({**{n: v for n, v in defaults.items() if n in taken}, **given}, _convert_="all")
        require(isinstance(found, kind), option, shown, f"makes no Lightning {kind.__name__}")
        return found
    except OptionError:
        raise
    except (Exception, SystemExit) as error:  # of anybody's class
        cause = error.__cause__ or error
        raise OptionError(option, shown, f"cannot be made: {type(cause).__name__}: {first_line(cause)}") from error


def _custom(frames: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[Callback, str]]:
    """Yield the callbacks of others whose methods run in these frames, each with file and line."""
    for frame, line in frames:
        for owner in (frame.f_locals.get("callback"), frame.f_locals.get("self")):  # Lightning calls functions too
            if isinstance(owner, Callback) and not type(owner).__module__.startswith("txl_lightning."):
                yield owner, f"{frame.f_code.co_filename}, line {line}"


class Trainer(L.Trainer):
    """Lightning's Trainer, which notes the callback that ends a training before its last step."""

    _stops, _ender = False, None

    @property
    def ended_by(self) -> str | None:
        """Class of the callback that ended the training, with its reason if it has one; None if none did."""
        reason = getattr(self._ender, "stopping_reason_message", None)
        why = f" ({reason.split(' Signaling')[0]})" if reason else ""
        return None if self._ender is None else f"{type(self._ender).__name__}{why}"

    @property
    def should_stop(self) -> bool:
        """Whether the training ends after this step."""
        return self._stops

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and not self._stops:
            self._ender = next((callback for callback, _ in _custom(walk_stack(None))), None)
        self._stops = bool(value)


@contextmanager
def naming_callbacks() -> Iterator[None]:
    """Name the custom callback that ended a run, and where: a run without results never ends with status 0.

    Raises:
        UserError: Lightning refuses it, it raised an error, or its code, or that of a custom logger, SystemExit or
            KeyboardInterrupt.
    """
    try:
        yield
    except UserError:
        raise
    except MisconfigurationException as error:  # ours fit
        raise UserError(f"trainer.callbacks: Lightning says: {first_line(error)}") from error
    except (Exception, SystemExit) as error:
        interrupted = isinstance(error.__context__, KeyboardInterrupt)  # of which Lightning makes SystemExit
        raised: Any = error.__context__ if interrupted else error
        found = list(_custom(walk_tb(raised.__traceback__)))
        if not found and isinstance(error, Exception):
            raise
        who, where = (type(found[-1][0]).__name__, f" ({found[-1][1]})") if found else ("code of others", "")
        text = " ".join([who, "raised", type(raised).__name__, *str(raised).splitlines()[:1]])
        raise UserError(f"trainer.callbacks: {text}{where}") from error
