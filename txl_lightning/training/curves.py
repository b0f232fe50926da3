"""Curves of a run: training, validation, loss by context length; progress on the terminal and in a file."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import Config
from txl_lightning.data.streams import Batch
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError
from txl_lightning.measure.loss_by_context import ContextCurve, context_curve, position_blocks
from txl_lightning.runs.metrics import loss_metrics, loss_unit, peak_memory, shown_units, unit_name
from txl_lightning.training.loggers import CurveFile, keep_lines, log_metrics, reported
from txl_lightning.training.module import LanguageModelModule


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
        self.curves = curves
        self._started = self._shown = 0.0
        self._first = 0
        self._rewrites = False

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

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._rewrites:
            self._rewrites = False
            sys.stderr.write("\n")

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        # Otherwise the error would begin in the middle of the bar's line.
        self.on_train_end(trainer, pl_module)
