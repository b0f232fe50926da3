"""Destinations of the curves: JSON Lines, `metrics.csv`, Weights & Biases, and loggers of Lightning."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from txl_lightning.config.architecture import kind_named
from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.errors import require
from txl_lightning.files import append_text, write_text
from txl_lightning.runs.trained import Checkpoint
from txl_lightning.training.callbacks import make


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Report a failed write on stderr instead of ending the training."""
    try:
        yield
    except OSError as error:
        print(f"could not write {what}: {error}; training continues", file=sys.stderr, flush=True)


class CurveFile:
    """Lines of JSON, each with the number of `steps` after which it was measured.

    A failed write is reported on stderr and does not end the training; the next one repeats it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unwritten = path, ""

    def append(self, row: dict[str, Any]) -> None:
        """Append one whole line, after those for which the disk was full."""
        self.unwritten += f"{json.dumps(row)}\n"
        with reported(self.path.name):
            append_text(self.path, self.unwritten)
            self.unwritten = ""


def text_of(path: Path) -> str:
    """Return the text of a curve file; empty if there is none."""
    return path.read_text("utf-8", "replace") if path.exists() else ""


def keep_lines(path: Path, keep: Callable[[Any], bool], parse: Callable[..., Any] = json.loads, head: int = 0) -> list:
    """Drop lines of a curve file whose row does not meet a condition, or that hold none; return the other rows.

    Args:
        path: path of the file.
        keep: whether a row is kept, if a kill or a full disk has not cut it short.
        parse: returns the row of a line, or raises an error, as `keep` may for a row of something else.
        head: number of lines of the header.
    """
    lines = text_of(path).splitlines(keepends=True)
    kept, rows, foreign = lines[:head], [], list[int]()
    for number, line in enumerate(lines[head:], head + 1):
        try:
            row = parse(line)
            if keep(row) and line.endswith("\n"):
                kept.append(line)
                rows.append(row)
        except (ValueError, LookupError, TypeError, RecursionError, csv.Error):
            foreign.append(number)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        print(f"{path}, line {foreign[0]}{more}: cut short, or not of this run; removed", file=sys.stderr, flush=True)
    if kept != lines:
        with reported(path.name):
            write_text(path, "".join(kept))
    return rows


class Rows(ExperimentWriter):
    """Lightning's writer of `metrics.csv`, which keeps rows of earlier sessions, and whole ones on a full disk."""

    def _check_log_dir_exists(self) -> None:
        """Leave the file, which Lightning's removes."""

    def save(self) -> None:
        """Append the new rows, below another header if they have new columns: all of them, or none."""
        path, names = Path(self.metrics_file_path), sorted({*self.metrics_keys}.union(*self.metrics))
        text = StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        if names != self.metrics_keys:
            writer.writeheader()
            writer.writerows(csv.DictReader(text_of(path).splitlines(keepends=True)))
        writer.writerows(self.metrics)
        (append_text if names == self.metrics_keys else write_text)(path, text.getvalue())
        self.metrics, self.metrics_keys = [], names


def keep_rows(logger: CSVLogger, step: int) -> None:
    """Let a logger of a resumed run continue its file, with the rows up to `step`: Lightning starts an empty one."""
    rows = logger._experiment = Rows(logger.log_dir)  # private
    path = Path(rows.metrics_file_path)
    names = next(csv.reader(text_of(path).splitlines()[:1]), [])

    def parse(line: str) -> dict[str, str]:
        return dict(zip(names, next(csv.reader([line])), strict=True))

    if keep_lines(path, lambda row: int(row["step"]) <= step > 0, parse, head=1):
        rows.metrics_keys = names


def log_metrics(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Write values of the current step to every logger; a failed write does not end the training."""
    for logger in trainer.loggers:
        with reported("the curves"):
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()


def continues_in(directory: Path, checkpoint: Path | None) -> bool:
    """Return whether a run resumes from a checkpoint of its own directory, whose curves it continues."""
    return checkpoint is not None and checkpoint.parent.resolve() == (directory / "checkpoints").resolve()


def lightning_loggers(config: Config, directory: Path, resumed: Checkpoint | None) -> dict[str, Logger]:
    """Return the loggers of Lightning that the group names, W&B's apart.

    A logger whose class takes a name for the run gets ours. It continues its run when the same logger resumes in the
    same directory, if its class takes an id.

    Raises:
        OptionError: one cannot be made.
    """
    group, made = config.logger, dict[str, Logger]()
    names = [name for name in group.names if name not in ("wandb", "none")]
    arguments, same = group.arguments or {}, resumed is not None and resumed.config.logger == group
    require(isinstance(arguments, dict), "logger.arguments", arguments, "must be {NAME: VALUE, …}")
    require(not arguments or len(names) == 1, "logger.arguments", arguments, "is of one logger: use logger.each")
    for name in names:
        given = {**(group.each.get(name) or {"_target_": group._target_}), **arguments}
        folders = dict.fromkeys(("dir", "log_dir", "repo"), directory / name)
        defaults = {**folders, "save_dir": directory, "run_name": run_name(config)}
        defaults |= {} if "save_dir" in given else {"version": ""}
        if resumed and same and continues_in(directory, resumed.path):  # MLflow's name of the argument, and Aim's
            defaults |= dict.fromkeys(("run_id", "run_hash"), resumed.record.get("logger_ids", {}).get(name))
        for option in ("log_model", "log_graph"):
            require(not given.get(option), f"logger.each.{name}.{option}", given.get(option), "would have no effect")
        made[name] = make(given, "logger._target_", Logger, defaults)
        require(not isinstance(made[name], WandbLogger), "logger._target_", given["_target_"], "is logger=wandb")
    return made


def start_loggers(
    config: Config, directory: Path, resumed: Checkpoint | None, made: Mapping[str, Logger], n_parameters: int
) -> list[Logger]:
    """Start the loggers in the order of the group, `made` and W&B's; no resumed one writes over an earlier session.

    A resumed run continues its W&B run if both are online. Offline every session is a run of its own: of two folders
    with one id an upload would keep the second only.
    """
    ids = resumed.record.get("logger_ids", {}) if resumed else {}
    for name, logger in made.items():
        if isinstance(logger, CSVLogger) and "://" not in logger.log_dir:
            keep_rows(logger, resumed.step if resumed else 0)
        if name != "csv" and str(logger.version or None) != ids.get(name):  # MLflow refuses other values in one run
            logger.log_hyperparams(plain(config))
    online = resumed is not None and config.logger.mode == resumed.config.logger.mode == "online"
    run_id = resumed.record.get("wandb_id") if resumed and online else None
    return [
        start_wandb(config, directory, n_parameters, resumed is None, run_id) if name == "wandb" else made[name]
        for name in config.logger.names
        if name != "none"
    ]


def upload_line(directory: Path) -> str | None:
    """Return a line with the command that uploads offline runs; None without any."""
    folders = " ".join(
        shlex.quote(str(path.parent)) for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    )
    return f"offline run of Weights & Biases, to upload it: wandb sync {folders}" if folders else None


CURVES = {  # over tokens, each with its summary of the run, such as `val/nll.min`
    **dict.fromkeys(("train/*", "context/*", "recl/*")),
    **dict.fromkeys(("val/nll", "val/bpc", "val/ppl", "val/bpt", "val/bpb"), "min"),
    "train/tokens_per_second": "mean",
}


def start_wandb(config: Config, directory: Path, n_parameters: int, first: bool, run_id: str | None) -> WandbLogger:
    """Start a W&B run with the whole config, in group `logger.group` and tagged by arm; curves are over `tokens`.

    Args:
        config: config of the run.
        directory: run directory.
        n_parameters: number of trained parameters.
        first: whether this is the first session of the run.
        run_id: id of an online W&B run to continue; None for a new one.

    Raises:
        OptionError: W&B refuses the run.
    """
    from txl_lightning.reporting.wandb_panels import start_run

    words = arm(config)
    recorded = {**plain(config), "parameters": n_parameters, "arm": ", ".join(words)}
    given: dict[str, Any] = {"name": run_name(config), "tags": words, "takes_given_id": first}
    run = start_run(directory, config.logger, "train", recorded, run_id=run_id, **given)
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
