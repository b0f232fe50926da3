"""Curves of a run: training and validation; progress on the terminal."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from tqdm import tqdm

from txl_lightning.data.streams import Batch
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.metrics import loss_metrics, peak_memory, shown_units
from txl_lightning.training.loggers import CurveFile, log_metrics
from txl_lightning.training.module import LanguageModelModule


class TrainingCurves(Callback):
    """Logs loss, bpc or ppl, learning rate, gradient norm, memory length, tokens/s and peak memory every n steps.

    The loss is the mean over the tokens of all ranks since the last log entry. Nothing is read from a GPU between log
    entries.

    Peak memory is that of the rank that needs most.

    Each validation is logged too, and written as a line of `validation.jsonl`: steps, tokens, seconds, nll and bpc or
    ppl.

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
            self.file.keep_until(trainer.global_step)

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


class ProgressBar(Callback):
    """Shows steps done, loss, ppl or bpc, bpb, tokens/s and time left: a bar, or ten lines without a terminal."""

    def __init__(self, curves: TrainingCurves) -> None:
        self.curves = curves
        self._bar: tqdm | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        options: dict[str, Any] = {"dynamic_ncols": True, "mininterval": 0.5}
        if not sys.stderr.isatty():
            every = math.ceil(trainer.max_steps / 10)
            options = {"file": _Lines(), "mininterval": 0.0, "maxinterval": math.inf, "miniters": every}
        self._bar = tqdm(total=int(trainer.max_steps), initial=trainer.global_step, unit="step", **options)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(pl_module.metrics), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        # Otherwise the error would begin in the middle of the bar's line.
        self.on_train_end(trainer, pl_module)

    def _text(self, metrics: dict[str, float]) -> str:
        latest = self.curves.latest
        shown = [f"{name} {latest['train/' + name]:.3f}" for name in ("nll", "bpc", "ppl") if "train/" + name in latest]
        shown += [f"val/{unit} {metrics[f'val/{unit}']:.3f}" for unit in shown_units(metrics, "val/")]
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return ", ".join(shown)


class _Lines:
    """Stream for tqdm that writes each state of the bar to stderr, on a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(f"{text.strip()}\n")

    def flush(self) -> None:
        sys.stderr.flush()
