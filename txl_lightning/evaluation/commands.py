"""Parts that the commands share: option checks, the device, the checkpoint, panels in W&B."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from txl_lightning.config.schemas import plain
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import OptionError, notice, require
from txl_lightning.evaluation.hardware import set_threads
from txl_lightning.evaluation.trained import (
    TrainedModel,
    checkpoint_corpus,
    is_other_text,
    load_trained,
)
from txl_lightning.ranks import own_gpu
from txl_lightning.reporting import upload_lines


def check_common_options(options: Any) -> None:
    """Check `accelerator`, and the `logger` that some commands have.

    Raises:
        OptionError: naming the option.
    """
    chosen_device(options.accelerator)
    if hasattr(options, "logger"):
        for name in options.logger.each:
            require(name == "wandb", "logger", name, "must be wandb or none")


@contextmanager
def options_as_typed() -> Iterator[None]:
    """Name the command's options in errors: `mem_len` instead of `evaluation.mem_len`."""
    try:
        yield
    except OptionError as error:
        raise OptionError(
            error.option.removeprefix("evaluation."), error.value, error.allowed
        ) from error


def chosen_device(accelerator: str) -> torch.device:
    """Return the CPU, or this process's GPU; never another device than the requested one.

    Raises:
        OptionError: `accelerator` is neither `cpu` nor `gpu`, or there is no GPU.
    """
    require(accelerator in ("cpu", "gpu"), "accelerator", accelerator, "must be cpu or gpu")
    if accelerator == "cpu":
        return torch.device("cpu")
    require(torch.cuda.is_available(), "accelerator", accelerator, "no GPU is visible")
    return own_gpu(int(os.environ.get("LOCAL_RANK", "0")))


def open_checkpoint(options: Any) -> TrainedModel:
    """Load `checkpoint` onto the command's device, and set the number of threads.

    Raises:
        OptionError: an option fails `check_common_options`, or the checkpoint cannot be read.
    """
    check_common_options(options)
    trained = load_trained(options.checkpoint)
    set_threads(options.num_threads, trained)
    trained.model.to(chosen_device(options.accelerator))
    return trained


def open_text(
    trained: TrainedModel, options: Any, splits: str | Sequence[str] | None, default: list[str]
) -> tuple[Corpus, list[str]]:
    """Load a checkpoint's corpus, or the text `data_path`; return it and the names of the splits to read.

    Args:
        trained: the checkpoint's contents.
        options: `checkpoint` and `data_path`.
        splits: one or several that are asked for, if any.
        default: splits to read from the run's corpus by default; another text is then read whole.
    """
    if isinstance(splits, str):
        splits = [splits]
    elif not splits:
        splits = [WHOLE] if is_other_text(options.data_path, [trained]) else default
    whole = WHOLE in splits
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    return corpus, list(splits)


def log_results(command: str, results: dict[str, Any], options: Any, directory: Path) -> None:
    """Log a command as a W&B run, if `logger=wandb`: its JSON as summary, its figures and pages as panels.

    Args:
        command: the command's name, as a prefix for all panels.
        results: contents of its JSON file.
        options: the command's options, shown beside the run.
        directory: the command's folder.
    """
    if "wandb" not in options.logger.each:
        return
    from txl_lightning.reporting.wandb_panels import log_file, start_run

    run = start_run(directory, options.logger, command, plain(options))
    run.summary.update(results)
    for path in sorted(directory.iterdir()):
        if path.suffix in (".png", ".html"):
            log_file(
                run,
                f"{command}/{path.stem}",
                path,
            )
    run.finish()
    for line in upload_lines(directory):
        notice(line)
