"""Options that several commands share: checks that need neither a checkpoint nor a corpus, and the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from txl_lightning.config.schemas import check_logger, check_seed
from txl_lightning.data.corpus import SPLITS
from txl_lightning.distributed.ranks import own_gpu
from txl_lightning.errors import OptionError, check_count, require
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import TrainedModel, load_trained

DTYPES = ("float32", "bfloat16", "float16")


def check_common_options(options: Any) -> None:
    """Check `accelerator` and `num_threads`; also `precision`, `split`, `seed`, `dtype` and `logger` of some commands.

    Raises:
        OptionError: naming the option.
    """
    check_at_least_one(options, "num_threads")
    chosen_device(options.accelerator)
    if hasattr(options, "precision"):
        chosen_precision(options.precision, options.accelerator)
    if hasattr(options, "split"):
        require(options.split in (None, *SPLITS), "split", options.split, f"must be one of {', '.join(SPLITS)}")
    if hasattr(options, "seed"):
        check_seed(options.seed)
    if hasattr(options, "dtype"):
        require(options.dtype in DTYPES, "dtype", options.dtype, f"must be one of {', '.join(DTYPES)}")
    if hasattr(options, "logger"):
        check_logger(options.logger, ("wandb", "none"))


def check_at_least_one(options: Any, *names: str) -> None:
    """Check that each of the named options is null or an integer >= 1.

    Raises:
        OptionError: naming the option.
    """
    for name in names:
        check_count(name, getattr(options, name))


@contextmanager
def options_as_typed() -> Iterator[None]:
    """Rename options in errors to those of the command: `mem_len` instead of `evaluation.mem_len`."""
    try:
        yield
    except OptionError as error:
        raise OptionError(error.option.removeprefix("evaluation."), error.value, error.allowed) from error


def chosen_device(accelerator: str) -> torch.device:
    """Return the CPU, or the GPU of this process; never another device than the one asked for.

    Raises:
        OptionError: `accelerator` is neither `cpu` nor `gpu`, or there is no GPU.
    """
    require(accelerator in ("cpu", "gpu"), "accelerator", accelerator, "must be cpu or gpu")
    if accelerator == "cpu":
        return torch.device("cpu")
    require(torch.cuda.is_available(), "accelerator", accelerator, "no GPU is visible")
    return own_gpu(int(os.environ.get("LOCAL_RANK", "0")))


def open_checkpoint(options: Any) -> TrainedModel:
    """Load `checkpoint` onto the device of the command, and set the threads that it uses.

    Raises:
        OptionError: an option of `check_common_options`, or the checkpoint cannot be read.
    """
    check_common_options(options)
    trained = load_trained(options.checkpoint)
    set_threads(options.num_threads, trained)
    trained.model.to(chosen_device(options.accelerator))
    return trained
