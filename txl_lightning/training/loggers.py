"""Destinations of the curves: JSON Lines, `metrics.csv`, Weights & Biases.

An interrupted training is one W&B run with all curves, not one for each session. Offline, W&B cannot resume a run:
uploading a second folder with the same id replaces the first. Therefore every row is also kept in
`wandb_history.jsonl`. A resumed run starts a new W&B run with an id of its own, repeats the rows up to its checkpoint,
and renames the files of the earlier sessions, so that `wandb sync` does not find them.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from txl_lightning.config.encoding_kinds import kind_named
from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_text
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import Checkpoint, read_checkpoint


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
        """Drop the lines whose row does not meet a condition, and half a line of a killed run; return the others."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = [(line, json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        kept = [(line, row) for line, row in rows if condition(row)]
        if (kept_text := "".join(line for line, _ in kept)) != text:
            with reported(self.path.name):
                write_text(self.path, kept_text)
        return [row for _, row in kept]

    def append(self, row: dict[str, Any]) -> None:
        """Append one whole line, or nothing if the disk is full."""
        line = f"{json.dumps(row)}\n".encode()
        with reported(self.path.name), self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if file.write(line) < len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def csv_logger(directory: Path, step: int) -> CSVLogger:
    """Return the logger of `metrics.csv`, with the rows up to `step` that an earlier session wrote."""
    path = directory / "metrics.csv"
    rows: list[dict[str, Any]] = []
    if step and path.exists():
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            last = (reader.fieldnames or ["step"])[-1]  # None in a row that was cut short
            rows = [row for row in reader if row[last] is not None and int(row["step"]) <= step]
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


HISTORY = "wandb_history.jsonl"
SUPERSEDED = ".superseded"  # suffix of the .wandb file of an earlier session
TEST = "test/"  # measured after the last step
SECONDS_TO_WRITE = 20.0


class RepeatableWandbLogger(WandbLogger):
    """W&B logger that keeps its rows in a file, from which a resumed run repeats them.

    Args:
        run: the W&B run.
        file: `wandb_history.jsonl` of the run directory.
    """

    def __init__(self, run: Any, file: CurveFile) -> None:
        super().__init__(experiment=run)
        self.file = file

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.file.append({"steps": step, "metrics": dict(metrics)})

    def log_series(
        self, panel: str, x: Sequence[float], curves: Mapping[str, Sequence[float]], x_name: str, title: str, step: int
    ) -> None:
        """Log a panel of named curves over a common x, measured after `step` steps."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        log_line_series(self.experiment, panel, x, curves, x_name, title)
        self.file.append({"steps": step, "series": [panel, x, curves, x_name, title]})

    def repeat(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows of earlier sessions again, in their order."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        for row in rows:
            if "metrics" in row:
                super().log_metrics(row["metrics"], row["steps"])
            elif "series" in row:
                log_line_series(self.experiment, *row["series"])


def continues_in(directory: Path, resumed: Checkpoint | None) -> bool:
    """Return whether a run resumes from a checkpoint of its own directory, whose curves it continues."""
    return resumed is not None and resumed.path.parent.resolve() == (directory / "checkpoints").resolve()


def make_logger(config: Config, directory: Path, resumed: Checkpoint | None, n_parameters: int) -> Logger | None:
    """Return the logger that the config names, with the rows of earlier sessions of this run; None for none."""
    step = resumed.step if resumed else 0
    if config.logger.name == "csv":
        return csv_logger(directory, step)
    if config.logger.name != "wandb":
        return None
    from_step = step if continues_in(directory, resumed) or config.resume == "auto" else None
    online = resumed is not None and config.logger.mode == resumed.config.logger.mode == "online"
    wandb_id = resumed.record.get("wandb_id") if resumed and online else None
    return start_wandb(config, directory, n_parameters, from_step, wandb_id)


def earlier_rows(file: CurveFile, step: int, max_steps: int) -> list[dict[str, Any]]:
    """Return the rows up to `step` that earlier sessions logged, and drop the others, which will be measured again."""

    def is_kept(row: dict[str, Any]) -> bool:
        measured_again = step >= max_steps and any(name.startswith(TEST) for name in row.get("metrics", ()))
        return row["steps"] <= step and not measured_again

    return file.keep(is_kept)


def supersede(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rename the offline runs of earlier sessions, whose rows a new run has repeated."""
    for path in _offline_files(directory, rows):
        path.rename(path.with_name(path.name + SUPERSEDED))


def upload_line(directory: Path) -> str | None:
    """Return a line with the command that uploads the offline run of a run directory, or why it is incomplete.

    Returns:
        None if there is no such run.
    """
    files = _offline_files(directory, CurveFile(directory / HISTORY).keep(lambda row: True))
    if not files:
        return None
    deadline = time.monotonic() + SECONDS_TO_WRITE
    while not (complete := is_complete(files[-1])) and time.monotonic() < deadline:  # W&B still writes after its end
        time.sleep(0.1)
    if not complete:
        again = "a command with resume=auto writes it again, from wandb_history.jsonl"
        return f"offline run of Weights & Biases: {files[-1]} was cut off, as by a full disk; {again}"
    return f"offline run of Weights & Biases, to upload it: wandb sync {shlex.quote(str(files[-1].parent))}"


def is_complete(path: Path) -> bool:
    """Return whether a file of W&B ends with the record of the run's end: a full disk cuts it without an error.

    The format is private: the record is the last one, of some forty bytes, among them this tag.
    """
    return b"\x92\x01" in path.read_bytes()[-64:]


def _offline_files(directory: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    ids = [row["run"] for row in rows if "run" in row]
    return [path for run_id in ids for path in directory.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")]


CURVES = {  # over tokens, each with its summary of the run, such as `val/nll.min`
    **dict.fromkeys(("train/*", "context/*", "recl/*")),
    **dict.fromkeys(("val/nll", "val/bpc", "val/ppl", "val/bpt", "val/bpb"), "min"),
    "train/tokens_per_second": "mean",
}
FINAL = "final"  # prefix of the values of `metrics.json`: `final/val/nll` is of the best weights on the whole split


def start_wandb(
    config: Config, directory: Path, n_parameters: int, step: int | None, online_id: str | None
) -> RepeatableWandbLogger:
    """Start a W&B run with the whole config, in group `logger.group` and tagged by arm.

    The x axis of all curves is `tokens`. A resumed run has the curves of its earlier sessions too: online W&B continues
    them, offline they are repeated.

    Args:
        config: config of the run.
        directory: run directory.
        n_parameters: number of trained parameters.
        step: step from which the run of this directory continues; None for another run.
        online_id: id of an online W&B run to continue; None for a new one.

    Raises:
        OptionError: W&B refuses the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    file = CurveFile(directory / HISTORY)
    earlier = earlier_rows(file, -1 if step is None else step, config.trainer.max_steps)
    recorded = {**plain(config), "parameters": n_parameters, "arm": ", ".join(arm(config))}
    run = start_run(
        directory, config.logger, "train", recorded, name=run_name(config), tags=arm(config), run_id=online_id
    )
    for metric, summary in CURVES.items():
        run.define_metric(metric, step_metric="tokens", summary=summary)
    logger = RepeatableWandbLogger(run, file)
    if online_id is None:
        file.append({"steps": 0, "run": run.id})  # step 0, so that a resumed run keeps the line
        logger.repeat(earlier)
        supersede(directory, earlier)
    return logger


def finish_wandb(logger: WandbLogger, config: Config, metrics: Mapping[str, Any], best: Path | None) -> None:
    """Write the metrics as summary, the best weights as artifact `model-RUN`, and end the run.

    The artifact has config and vocabulary too and is usable as `checkpoint=`. Without the optimizer's state it has a
    third of the checkpoint's size. Its name contains the step: an offline run refers to the file until `wandb sync`, so
    a resumed run must not overwrite it. A failed write is reported and does not fail the run; `metrics.json` exists by
    then.
    """
    from txl_lightning.reporting.wandb_panels import log_files

    run = logger.experiment
    run.summary.update({f"{FINAL}/{name}": value for name, value in metrics.items()})
    if config.logger.artifacts and best is not None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        try:
            contents = read_checkpoint(best).contents
            path = best.resolve().with_name(f"weights_step_{contents['global_step']}.ckpt")
            write_checkpoint({name: contents[name] for name in ("state_dict", "global_step", "txl_lightning")}, path)
            metadata = {**numbers, "arm": ", ".join(arm(config))}
            log_files(run, f"model-{run.id}", "model", [path], metadata, in_place=True)
        except (OSError, ValueError) as error:
            print(f"could not write the artifact of the weights: {error}", file=sys.stderr, flush=True)
    run.finish()


def arm(config: Config) -> list[str]:
    """Return the options that the ablation compares, in words; sizes, lengths and seed are not among them."""
    if isinstance(config.model, RecurrentModelConfig):
        return [config.model.name, f"{config.loss} loss"]
    assert isinstance(config.model, TransformerXLModelConfig)
    words = [config.encoding.name, "recurrence" if config.memory.mem_len else "no recurrence", f"{config.loss} loss"]
    has_position_terms = kind_named(config.encoding.name).terms != "a"
    fewer_terms = has_position_terms and config.model.terms != "abcd"
    parts = {
        f"terms {config.model.terms or 'none'}": fewer_terms,
    }
    beyond = " ".join(f"{name}={value}".removeprefix("name=") for name, value in config.beyond.items())
    return [*words, *(part for part, is_on in parts.items() if is_on), *filter(None, [beyond])]


def run_name(config: Config) -> str:
    """Return the arm and the options that are most often swept with it."""
    lengths = f"memory {config.memory.mem_len}, segment {config.data.segment_len}"
    return f"{', '.join(arm(config))}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
