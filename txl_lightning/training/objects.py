"""Objects that options name by their class, made by Hydra: callbacks, loggers, optimizers, Trainer arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_class, instantiate
from lightning import Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.errors import OptionError, UserError, first_line, require
from txl_lightning.training import Values

# Arguments that `txl train` passes to Lightning's Trainer itself, and the option that decides each.
MANAGED = {
    "accumulate_grad_batches": "trainer.stream_groups=N divides data.batch_size, which is the batch of a step",
    "default_root_dir": "hydra.run.dir=FOLDER",
    "logger": "logger=NAME",
    "plugins": "a run has its own plugins",
    "use_distributed_sampler": "every process reads different streams",
}


def make(given: Any, option: str, kind: type, *arguments: Any, **defaults: Any) -> Any:
    """Return an instance of the class `given["_target_"]`, including objects within its options.

    Args:
        given: class and options.
        option: where it was given, for errors.
        kind: class that the object must have; nothing else is called.
        arguments: arguments before the options.
        defaults: options that it gets if its class takes them and they are not given.

    Raises:
        OptionError: it cannot be made.
    """
    is_mapping = isinstance(given, Mapping)
    target = str(given.get("_target_") if is_mapping else given)
    require(is_mapping and "." in target, option, target, "must be {_target_: MODULE.CLASS, …}")
    try:
        made_class = get_class(target)
    except Exception as error:  # from anybody's module
        raise OptionError(option, target, f"cannot be made: {first_line(error)}") from error
    other = f"is no {kind.__name__} of {kind.__module__}"
    require(issubclass(made_class, kind), option, target, other)
    options = {**given, "_partial_": True}
    for name, value in defaults.items():
        if name in inspect.signature(made_class).parameters:
            options.setdefault(name, value)
    try:
        return instantiate(options, _convert_="all")(*arguments)
    except (Exception, SystemExit) as error:  # from anybody's class
        cause = error.__cause__ or error
        raise OptionError(
            option, target, f"cannot be made: {type(cause).__name__}: {first_line(cause)}"
        ) from error


def trainer_arguments(options: TrainerConfig) -> Values:
    """Return the arguments given for Lightning's Trainer besides our options; objects are made.

    Raises:
        UserError: Lightning has no such argument, or one of our options decides it.
    """
    known = inspect.signature(Trainer.__init__).parameters
    arguments = {}
    for name, value in options.lightning.items():
        option = f"trainer.{name}"
        if name == "strategy":
            only = "must be auto or ddp, which trains on trainer.devices=N"
            require(value in ("auto", "ddp"), option, value, only)
            continue
        if name in MANAGED:
            raise OptionError(option, value, f"is set by txl train: {MANAGED[name]}")
        if name not in known:
            near = difflib.get_close_matches(
                name,
                [*vars(options), *known],
                n=1,
            )
            hint = f", did you mean trainer.{near[0]}?" if near else ""
            raise UserError(f"{option}={value}: no such option{hint}")
        arguments[name] = value
        if isinstance(value, Mapping) and "_target_" in value:
            arguments[name] = instantiate(value)
    return arguments


def new_trainer(arguments: Values, options: TrainerConfig) -> Trainer:
    """Return a Trainer with a run's arguments and the given ones.

    Raises:
        UserError: Lightning refuses them.
    """
    try:
        return Trainer(**{**arguments, **trainer_arguments(options)})
    except (MisconfigurationException, TypeError, ValueError) as error:
        words = []
        for name, value in options.lightning.items():
            words.append(f"trainer.{name}={value}")
        given = " ".join(words)
        raise UserError(
            f"{given or 'trainer'}: Lightning refuses it: {first_line(error)}"
        ) from error
