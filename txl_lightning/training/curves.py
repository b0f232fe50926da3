"""Curves of a run, their files and loggers: training, validation, loss by context length; progress on the terminal."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.architecture import kind_named
from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import Config, RecurrentModelConfig, TransformerXLModelConfig, plain
from txl_lightning.data.streams import Batch
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, require
from txl_lightning.files import append_text, write_text
from txl_lightning.recl.loss_by_context import ContextCurve, context_curve
from txl_lightning.recl.positions import position_blocks
from txl_lightning.runs.metrics import loss_metrics, loss_unit, peak_memory, shown_units, unit_name
from txl_lightning.runs.trained import Checkpoint, continues_in
from txl_lightning.training.callbacks import make
from txl_lightning.training.module import LanguageModelModule


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


class TrainingCurves(Callback):
    """Logs loss, ppl, bpc or bpb, learning rate, gradient norm, memory length, tokens/s and peak memory every n steps.

    The loss is the mean over the tokens of all ranks since the last log entry. Nothing is read from a GPU between log
    entries.

    Peak memory is that of the rank that needs most.

    Each validation is logged too, and written as a line of `validation.jsonl`: steps, tokens, seconds, nll, and ppl,
    bpc or bpb.

    Args:
        directory: run directory.
        every_n_steps: n.
        ranks: the processes of the run.

    Attributes:
        tokens: seen by all ranks since the run began, earlier sessions included.
        latest: values of the last log entry.
    """

    def __init__(self, directory: Path, every_n_steps: int, ranks: Ranks) -> None:
        self.file, self.every_n_steps, self.ranks = CurveFile(directory / "validation.jsonl"), every_n_steps, ranks
        self.tokens = 0
        self.latest: dict[str, float] = {}
        self._nll_sum: torch.Tensor | float = 0.0
        self._tokens = self._tokens_before = 0
        self._seconds_before = 0.0
        self._started = self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock time of this run, including earlier sessions up to their last checkpoint."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = self._since = time.perf_counter()
        self._tokens_before = self._tokens
        if self.ranks.rank == 0:
            keep_lines(self.file.path, lambda row: row["steps"] <= trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: Any) -> None:
        n_tokens = batch.targets.numel()
        self.tokens += trainer.train_dataloader.batch_size * batch.targets.shape[1]  # type: ignore[union-attr]
        self._nll_sum = self._nll_sum + pl_module.loss * n_tokens
        self._tokens += n_tokens
        if trainer.global_step % self.every_n_steps == 0 or trainer.global_step == trainer.max_steps:
            self._log(trainer, pl_module)

    def _log(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        recent = self._tokens - self._tokens_before
        nll_sum, tokens, n_recent = self.ranks.total(float(self._nll_sum), self._tokens, recent)
        values = loss_metrics(nll_sum / tokens, module.level) if tokens else {}
        memory = module.training_memory.memory
        self.latest = {f"train/{name}": value for name, value in values.items()} | {
            "train/tokens_per_second": n_recent / (time.perf_counter() - self._since),
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train/gradient_norm": float(module.gradient_norm),
            "train/memory_length": float(getattr(memory, "filled", 0)),
            "train/peak_memory_bytes": self.ranks.largest(peak_memory(module.device)),
        }
        log_metrics(trainer, {**self.latest, "tokens": self.tokens})
        self._nll_sum, self._tokens = 0.0, 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last log entry from tokens/s."""
        self._since, self._tokens_before = time.perf_counter(), self._tokens

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.restart_clock()
        if trainer.state.fn == TrainerFn.FITTING and trainer.is_global_zero:
            values = self._log_evaluation(trainer, pl_module, "val/")
            row = {"steps": trainer.global_step, "tokens": self.tokens, "seconds": round(self.seconds, 2)}
            self.file.append({**row, **values})

    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._log_evaluation(trainer, pl_module, "test/")

    def _log_evaluation(self, trainer: L.Trainer, module: LanguageModelModule, prefix: str) -> dict[str, float]:
        values = {name: value for name, value in module.metrics.items() if name.startswith(prefix)}
        log_metrics(trainer, {**values, "tokens": self.tokens})
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return tokens and seconds so far, and each rank's sums since the last log entry."""
        since = self.ranks.gather((float(self._nll_sum), int(self._tokens)))
        return {"tokens": self.tokens, "seconds": self.seconds, "since": since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts; on another number of ranks, rank 0 takes the sums of all."""
        self.tokens, self._seconds_before = state_dict["tokens"], state_dict["seconds"]
        sums, W = state_dict["since"], self.ranks.world_size
        if len(sums) == W:
            self._nll_sum, self._tokens = sums[self.ranks.rank]
        elif self.ranks.rank == 0:
            self._nll_sum, self._tokens = (sum(part) for part in zip(*sums, strict=True))


N_CONTEXTS, N_POSITIONS, FRACTIONS = 8, 500, [0.1, 0.5, 1.0]
RECL_THRESHOLD = 0.01  # of appendix C


class ContextCurves(Callback):
    """Scores fixed positions of the validation split with exactly c tokens of context, for several c.

    Logs `context/{unit}/{c}`, `context/doublings/{c}` (bits from c to 2c), `context/within_1_percent`, `recl/{r}`
    and `recl/{r}/guarded` over steps, in the words of `recl.json`. When training ends, `context_curve.png` shows the
    losses over steps.
    RECL is that of a group with this model alone (appendix C); in a larger group it may differ. Every rank scores
    its share of the windows. Memory, streams and random state of the training stay unchanged. The time of a measurement
    is excluded from tokens/s.

    Args:
        config: its `context_curve`, and the lengths of training.
        tokens: the validation split.
        directory: run directory, for `context_curve.jsonl`.
        curves: counts the tokens seen so far.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(self, config: Config, tokens: np.ndarray, directory: Path, curves: TrainingCurves) -> None:
        self.file, self.curves = CurveFile(directory / "context_curve.jsonl"), curves
        self.every_n_steps, self.tokens, options = config.context_curve.every_n_steps, tokens, config.context_curve
        step = options.max_context // N_CONTEXTS
        self.contexts = [step * (i + 1) for i in range(N_CONTEXTS)]
        try:
            n = max(1, min(N_POSITIONS, len(tokens) - options.max_context))
            self.positions, blocks = position_blocks(len(tokens), n, self.contexts)
        except OptionError as error:
            raise OptionError("context_curve.max_context", options.max_context, error.allowed) from error
        # Absolute positions reach as far as those of training; larger distances share one.
        lengths = {"trained_len": training_lengths(config).window, "clamp_len": trained_clamp(config)}
        definition = {"fractions": FRACTIONS, "threshold": RECL_THRESHOLD, "bootstrap": 0}
        self.given: dict[str, Any] = {"blocks": blocks, **lengths, **definition}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        def keep(row: Any) -> bool:  # raises if the row cannot be drawn
            drawn = [*zip(row["contexts"], np.isfinite(row["nll"]), strict=True)]
            return row["steps"] <= trainer.global_step and bool(drawn)

        if trainer.is_global_zero:
            keep_lines(self.file.path, keep)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        if self.every_n_steps is None or trainer.global_step % self.every_n_steps:
            return
        curve = context_curve(pl_module.model, self.tokens, self.positions, self.contexts, **self.given)
        if trainer.is_global_zero:
            self._log(trainer, pl_module, curve)
        self.curves.restart_clock()

    def _log(self, trainer: L.Trainer, module: LanguageModelModule, curve: ContextCurve) -> None:
        unit, step = loss_unit(module.level), trainer.global_step
        values = [loss_metrics(nll, module.level)[unit] for nll in curve.nll]
        row = dict[str, Any](steps=step, contexts=self.contexts, nll=curve.nll, nll_standard_error=curve.standard_error)
        row |= {unit: values, **curve.gains, "recl": {str(r): vars(found) for r, found in curve.recl.items()}}
        scalars = {f"context/{unit}/{c}": value for c, value in zip(self.contexts, values, strict=True)}
        scalars |= {f"context/doublings/{doubling['from']}": doubling["bits"] for doubling in row["doublings"]}
        scalars |= {f"recl/{r}": float(found.value) for r, found in curve.recl.items()}
        scalars |= {f"recl/{r}/guarded": float(found.guarded) for r, found in curve.recl.items()}
        within = {"context/within_1_percent": float(row["within_1_percent"])}
        log_metrics(trainer, {**scalars, **within, "tokens": self.curves.tokens})
        self.file.append(row)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        rows = keep_lines(self.file.path, lambda row: True) if trainer.is_global_zero else []
        rows = [row for row in rows if row.get("contexts") == self.contexts]
        if not rows:
            return
        from txl_lightning.reporting.canvas import line_figure  # imports matplotlib

        level, steps = pl_module.level, [row["steps"] for row in rows]
        losses = [[loss_metrics(nll, level)[loss_unit(level)] for nll in row["nll"]] for row in rows]
        curves = {f"{c} tokens": [(steps, [of[i] for of in losses])] for i, c in enumerate(self.contexts)}
        path, title = self.file.path.with_suffix(".png"), "Loss by context, during training"
        with reported(path.name):
            line_figure(path, curves, "steps", unit_name(level), title)


class ProgressBar(Callback):
    """Shows steps, time left, loss, the last validation and tokens/s on one line that fits the terminal.

    Without a terminal, and on one that cannot go back to the start of a line (TERM=dumb), it is a new line for every
    tenth of the steps, and after five minutes without one.
    """

    def __init__(self, curves: TrainingCurves) -> None:
        self.curves, self._rewrites = curves, False

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = self._shown = time.monotonic()
        self._first = trainer.global_step
        self._rewrites = trainer.is_global_zero and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step, steps, now = trainer.global_step, trainer.max_steps, time.monotonic()
        is_due = now - self._shown >= (0.5 if self._rewrites else 300) or step == steps
        if trainer.is_global_zero and (is_due or (not self._rewrites and step * 10 % steps < 10)):
            left = timedelta(seconds=round((now - self._started) / (step - self._first) * (steps - step)))
            self._show(f"{step:,}/{steps:,} steps", f"{left} left", *self._values(pl_module.metrics))
            self._shown = now

    def _values(self, metrics: dict[str, float]) -> list[str]:
        latest, validated = self.curves.latest, [f"val/{unit}" for unit in shown_units(metrics, "val/")]
        shown = [f"{unit} {latest[f'train/{unit}']:.3f}" for unit in shown_units(latest, "train/")[:1]]
        shown += [f"{name} {metrics[name]:.3f}" for name in validated[:1]]
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return [*shown, *(f"{name} {metrics[name]:.3f}" for name in validated[1:])]

    def _show(self, *parts: str) -> None:
        width = get_terminal_size().columns - 1
        while len(line := ", ".join(parts)) > width and len(parts) > 1:
            parts = parts[:-1]
        sys.stderr.write(f"\r{line:<{width}}" if self._rewrites else f"{line}\n")
        sys.stderr.flush()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        if self._rewrites:
            self._rewrites = False
            sys.stderr.write("\n")

    on_exception = on_train_end  # otherwise the error would begin in the middle of the bar's line


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
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    folders = " ".join(shlex.quote(str(file.parent)) for file in files)
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
    variant = " ".join(f"{name}={value}".removeprefix("name=") for name, value in config.variant.items())
    return [*words, variant] if variant else words


def run_name(config: Config) -> str:
    """Return the arm and the options that are most often swept with it."""
    lengths = f"memory {config.memory.mem_len}, segment {config.data.segment_len}"
    return f"{', '.join(arm(config))}; {lengths}, lr {config.optimizer.lr:g}, seed {config.seed}"
