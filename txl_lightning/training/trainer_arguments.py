"""Arguments of Lightning's Trainer that are options of `txl train` without being listed in the schema."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.errors import OptionError, UserError, first_line, require

# Arguments that `txl train` sets itself, and the option that decides them.
MANAGED = {
    "accumulate_grad_batches": "trainer.stream_groups=N divides data.batch_size, which is the batch of a step",
    "default_root_dir": "hydra.run.dir=FOLDER",
    "logger": "logger=NAME",
    "plugins": "a run has its own",
    "use_distributed_sampler": "every process reads streams of its own",
}


def trainer_arguments(options: TrainerConfig) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer that were given beside our own options; objects are made.

    Raises:
        UserError: Lightning has no such argument, or an own option decides it.
    """
    known = inspect.signature(L.Trainer.__init__).parameters
    arguments = {}
    for name, value in options.lightning.items():
        option = f"trainer.{name}"
        if name == "strategy":
            require(
                value in ("auto", "ddp"),
                option,
                value,
                "must be auto or ddp, which trains on trainer.devices=N",
            )
            continue
        if name in MANAGED:
            raise OptionError(option, value, f"is decided by txl train; here: {MANAGED[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, [*vars(options), *known], n=1)
            hint = f", did you mean trainer.{near[0]}?" if near else ""
            raise UserError(f"{option}={value}: no such option{hint}")
        arguments[name] = value
        if isinstance(value, Mapping) and "_target_" in value:
            arguments[name] = instantiate(value)
    return arguments


def new_trainer(arguments: dict[str, Any], options: TrainerConfig) -> L.Trainer:
    """Return a Trainer with the arguments of a run and those that were given.

    Raises:
        UserError: Lightning refuses them.
    """
    all_arguments = dict(arguments)
    all_arguments.update(trainer_arguments(options))
    try:
        return L.Trainer(**all_arguments)
    except (MisconfigurationException, TypeError, ValueError) as error:
        given = " ".join(f"trainer.{name}={value}" for name, value in options.lightning.items())
        raise UserError(
            f"{given or 'trainer'}: Lightning refuses it: {first_line(error)}"
        ) from error
