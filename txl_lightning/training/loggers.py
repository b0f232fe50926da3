"""Destinations of the curves: JSON Lines, `metrics.csv`, Weights & Biases, and loggers and callbacks of Lightning."""

from __future__ import annotations

import csv
import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from traceback import walk_tb
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from txl_lightning.config.encoding_kinds import kind_named
from txl_lightning.config.schemas import (
    Config,
    LightningLoggerConfig,
    RecurrentModelConfig,
    TransformerXLModelConfig,
    plain,
)
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import write_text
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.trained import Checkpoint


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Report a failed write on stderr instead of ending the training."""
    try:
        yield
    except OSError as error:
        print(f"could not write {what}: {error}; training continues", file=sys.stderr, flush=True)


class CurveFile:
    """Lines of JSON, each with the number of `steps` after which it was measured.

    A failed write is reported on stderr and does not end the training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop later lines: a run resumed at `step` in the same directory measures them again."""
        self.keep(lambda row: row["steps"] <= step)

    def keep(self, condition: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Drop the lines whose row does not meet a condition, or that hold none; return the other rows."""
        text = self.path.read_text("utf-8", "replace") if self.path.exists() else ""
        kept, rows = parsed(self.path, text.splitlines(keepends=True), json.loads, condition)
        if (kept_text := "".join(kept)) != text:
            with reported(self.path.name):
                write_text(self.path, kept_text)
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Append one whole line, or nothing if the disk is full."""
        line = f"{json.dumps(row)}\n".encode()
        with reported(self.path.name), self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if file.write(line) < len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def parsed(
    path: Path, lines: list[str], parse: Callable[[str], Any], condition: Callable[[Any], bool], first: int = 1
) -> tuple[list[str], list[Any]]:
    """Return the whole lines of a curve file whose row meets a condition, and these rows; report lines without a row.

    Args:
        path: path of the file.
        lines: with their ends, which a line that a kill or a full disk has cut short lacks.
        parse: returns the row of a line, or raises an error, as `condition` may for a row of something else.
        condition: whether a row is kept.
        first: number of the first line.
    """
    kept, foreign = list[tuple[str, Any]](), list[int]()
    for number, line in enumerate(lines, first):
        try:
            row = parse(line)
            if condition(row) and line.endswith("\n"):
                kept.append((line, row))
        except (ValueError, LookupError, TypeError, RecursionError, csv.Error):
            foreign.append(number)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        print(f"{path}, line {foreign[0]}{more}: cut short, or not of this run; removed", file=sys.stderr, flush=True)
    return [line for line, _ in kept], [row for _, row in kept]


def csv_logger(directory: Path, step: int) -> CSVLogger:
    """Return the logger of `metrics.csv`, with the rows up to `step` that an earlier session wrote."""
    path, rows = directory / "metrics.csv", list[dict[str, str]]()
    if step and path.exists():
        head, *lines = path.read_text("utf-8", "replace").splitlines(keepends=True) or [""]
        names = next(csv.reader([head]), [])

        def parse(line: str) -> dict[str, str]:
            return dict(zip(names, next(csv.reader([line])), strict=True))

        _, rows = parsed(path, lines, parse, lambda row: int(row["step"]) <= step, first=2)
    logger = CSVLogger(save_dir=directory, name=None, version="")
    logger.experiment.metrics = rows  # private in Lightning, which starts an empty file
    logger.save()
    return logger


def log_metrics(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Write values of the current step to every logger; a failed write does not end the training."""
    for logger in trainer.loggers:
        with reported("the curves"):
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()


UNFIT = {  # and what to use
    "WeightAveraging": "would save other weights than those that the memory comes from",
    "StochasticWeightAveraging": "would end with other weights than those that the memory comes from",
    "Checkpoint": "is not needed: checkpoint.every_n_steps, checkpoint.keep_every_n_steps",
    "ProgressBar": "is not needed: trainer.progress_bar",
    "GradientAccumulationScheduler": "is not needed: trainer.stream_groups",
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


def custom_logger(logger: LightningLoggerConfig, directory: Path) -> Logger:
    """Return the logger of Lightning that the group names.

    Raises:
        OptionError: it cannot be made.
    """
    target, arguments = logger._target_, logger.arguments or {}
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
    except (Exception, SystemExit) as error:  # of anybody's class
        line = (str(error).splitlines() or [""])[0]
        raise OptionError(option, shown, f"cannot be made: {type(error).__name__}: {line}") from error


@contextmanager
def naming_callbacks() -> Iterator[None]:
    """Name the custom callback that ended a run, and where: a run without results never ends with status 0.

    Raises:
        UserError: it raised an error, or its code, or that of a custom logger, SystemExit or KeyboardInterrupt.
    """
    try:
        yield
    except (UserError, MisconfigurationException):
        raise
    except (Exception, SystemExit) as error:
        interrupted = isinstance(error.__context__, KeyboardInterrupt)  # of which Lightning makes SystemExit
        raised: Any = error.__context__ if interrupted else error
        who = where = ""
        for frame, line in walk_tb(raised.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, Callback) and not type(owner).__module__.startswith("txl_lightning."):
                who, where = type(owner).__name__, f" ({frame.f_code.co_filename}, line {line})"
        if not who and isinstance(error, Exception):
            raise
        text = " ".join([who or "code of others", "raised", type(raised).__name__, *str(raised).splitlines()[:1]])
        raise UserError(f"trainer.callbacks: {text}{where}") from error


SECONDS_TO_WRITE = 20.0


def continues_in(directory: Path, checkpoint: Path | None) -> bool:
    """Return whether a run resumes from a checkpoint of its own directory, whose curves it continues."""
    return checkpoint is not None and checkpoint.parent.resolve() == (directory / "checkpoints").resolve()


def make_logger(config: Config, directory: Path, resumed: Checkpoint | None, n_parameters: int) -> Logger | None:
    """Return the logger that the config names; None for none.

    A resumed run continues its W&B run if both are online. Offline every session is a run of its own: of two folders
    with one id an upload would keep the second only.
    """
    if config.logger.name == "csv":
        return csv_logger(directory, resumed.step if resumed else 0)
    if config.logger.name != "wandb":
        return None
    online = resumed is not None and config.logger.mode == resumed.config.logger.mode == "online"
    return start_wandb(config, directory, n_parameters, resumed.record.get("wandb_id") if resumed and online else None)


def upload_line(directory: Path) -> str | None:
    """Return a line with the command that uploads the offline runs of a run directory, or why the last is incomplete.

    Returns:
        None if there is none.
    """
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    if not files:
        return None
    deadline = time.monotonic() + SECONDS_TO_WRITE
    while not (complete := is_complete(files[-1])) and time.monotonic() < deadline:  # W&B still writes after its end
        time.sleep(0.1)
    if not complete:
        return f"offline run of Weights & Biases: {files[-1]} was cut off, as by a full disk"
    folders = " ".join(shlex.quote(str(file.parent)) for file in files)
    return f"offline run of Weights & Biases, to upload it: wandb sync {folders}"


def is_complete(path: Path) -> bool:
    """Return whether a file of W&B has the record of the run's end: a full disk cuts it without an error.

    The format is private: the record begins with the run's id and this tag. Blocks of the file have a header of seven
    bytes, which may lie within the record.
    """
    data, end = path.read_bytes(), path.stem.removeprefix("run-").encode() + b"\x92\x01"
    return end in b"".join(data[start + 7 : start + 32_768] for start in range(0, len(data), 32_768))


CURVES = {  # over tokens, each with its summary of the run, such as `val/nll.min`
    **dict.fromkeys(("train/*", "context/*", "recl/*")),
    **dict.fromkeys(("val/nll", "val/bpc", "val/ppl", "val/bpt", "val/bpb"), "min"),
    "train/tokens_per_second": "mean",
}


def start_wandb(config: Config, directory: Path, n_parameters: int, run_id: str | None) -> WandbLogger:
    """Start a W&B run with the whole config, in group `logger.group` and tagged by arm; curves are over `tokens`.

    Args:
        config: config of the run.
        directory: run directory.
        n_parameters: number of trained parameters.
        run_id: id of an online W&B run to continue; None for a new one.

    Raises:
        OptionError: W&B refuses the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    words = arm(config)
    recorded = {**plain(config), "parameters": n_parameters, "arm": ", ".join(words)}
    run = start_run(directory, config.logger, "train", recorded, name=run_name(config), tags=words, run_id=run_id)
    for metric, summary in CURVES.items():
        run.define_metric(metric, step_metric="tokens", summary=summary)
    return WandbLogger(experiment=run)


def arm(config: Config) -> list[str]:
    """Return the options that the ablation compares, in words; sizes, lengths and seed are not among them."""
    if isinstance(config.model, RecurrentModelConfig):
        return [config.model.name, f"{config.loss} loss"]
    assert isinstance(config.model, TransformerXLModelConfig)
    words = [config.encoding.name, "recurrence" if config.memory.mem_len else "no recurrence", f"{config.loss} loss"]
    if kind_named(config.encoding.name).terms != "a" and config.model.terms != "abcd":
        words.append(f"terms {config.model.terms or 'none'}")
    beyond = " ".join(f"{name}={value}".removeprefix("name=") for name, value in config.beyond.items())
    return [*words, beyond] if beyond else words


def run_name(config: Config) -> str:
    """Return the arm and the options that are most often swept with it."""
    lengths = f"memory {config.memory.mem_len}, segment {config.data.segment_len}"
    return f"{', '.join(arm(config))}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
