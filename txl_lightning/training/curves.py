"""Curves of a run: training, validation, and loss by context length."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.schemas import ContextCurveConfig
from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.recl.effective_context import check_definition
from txl_lightning.evaluation.recl.loss_by_context import ContextCurve, context_curve
from txl_lightning.evaluation.scoring.position_blocks import position_blocks
from txl_lightning.runs.metrics import loss_metrics, loss_unit, peak_flops, peak_memory, training_flops
from txl_lightning.training.curve_files import CurveFile
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.wandb_run import RepeatableWandbLogger


def log_metrics(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Write values of the current step to every logger; a failed write does not end the training."""
    for logger in trainer.loggers:
        try:
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()
        except OSError as error:
            print(f"could not write the curves: {error}; training continues", file=sys.stderr, flush=True)


class TrainingCurves(Callback):
    """Logs loss, bpc or ppl, learning rate, gradient norm, memory length, tokens/s, MFU and peak memory every n steps.

    A compressed memory adds the compression loss of the last step.

    The loss is the mean over the tokens of all ranks since the last log entry, without those of skipped steps. Nothing
    is read from a GPU between log entries.

        MFU = tokens/s · flops a token needs (`training_flops`) / (peak of the device · ranks)

    MFU is left out where the peak is not known (`peak_flops`). Peak memory is that of the rank that needs most.

    Args:
        every_n_steps: n.
        ranks: the processes of the run.

    Attributes:
        tokens: seen by all ranks since the run began, earlier sessions included.
        latest: values of the last log entry.
    """

    def __init__(self, every_n_steps: int, ranks: Ranks) -> None:
        self.every_n_steps, self.ranks = every_n_steps, ranks
        self.tokens = 0
        self.latest: dict[str, float] = {}
        self._nll_sum: torch.Tensor | float = 0.0
        self._tokens: torch.Tensor | int = 0
        self._tokens_before: torch.Tensor | int = 0
        self._shape = (1, 1)  # B and T of the last segment
        self._seconds_before = 0.0
        self._started = self._since = time.perf_counter()

    @property
    def state_key(self) -> str:
        return "TrainingCurves"

    @property
    def seconds(self) -> float:
        """Wall-clock time of this run, including earlier sessions up to their last checkpoint."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = self._since = time.perf_counter()
        self._tokens_before = self._tokens

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        n_tokens = batch.targets.numel()
        self.tokens += n_tokens * self.ranks.world_size
        self._shape = (batch.targets.shape[0], batch.targets.shape[1])
        skipped = pl_module.step_skipped
        self._nll_sum = self._nll_sum + torch.where(skipped, 0.0, pl_module.loss * n_tokens)
        self._tokens = self._tokens + n_tokens * ~skipped
        if trainer.global_step % self.every_n_steps == 0 or trainer.global_step == trainer.max_steps:
            self._log(trainer, pl_module)

    def _log(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        recent = int(self._tokens - self._tokens_before)
        nll_sum, tokens, n_recent = self.ranks.total(float(self._nll_sum), int(self._tokens), recent)
        values = loss_metrics(nll_sum / tokens, module.level) if tokens else {}
        memory = module.training_memory.memory
        tokens_per_second = n_recent / (time.perf_counter() - self._since)
        self.latest = {f"train/{name}": value for name, value in values.items()} | {
            "train/tokens_per_second": tokens_per_second,
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train/gradient_norm": float(module.gradient_norm),
            "train/memory_length": float(getattr(memory, "filled", 0)),
            "train/peak_memory_bytes": self.ranks.largest(peak_memory(module.device)),
        }
        if module.compression_loss is not None:
            (total,) = self.ranks.total(float(module.compression_loss))
            self.latest["train/compression_loss"] = total / self.ranks.world_size
        peak = peak_flops(module.device, str(trainer.precision))
        if peak is not None:
            per_token = training_flops(module.model, *self._shape) / (self._shape[0] * self._shape[1])
            self.latest["train/mfu"] = tokens_per_second * per_token / (peak * self.ranks.world_size)
        log_metrics(trainer, {**self.latest, "tokens": self.tokens})
        self._nll_sum, self._tokens = 0.0, 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last log entry from tokens/s."""
        self._since, self._tokens_before = time.perf_counter(), self._tokens

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.restart_clock()

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


class ValidationCurve(Callback):
    """Writes each validation as a line of `validation.jsonl`: steps, tokens, seconds, nll and bpc or ppl.

    Args:
        path: path of the file.
        curves: counts the tokens seen so far and the seconds.
    """

    def __init__(self, path: Path, curves: TrainingCurves) -> None:
        self.file, self.curves = CurveFile(path), curves

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        values = {name: value for name, value in pl_module.metrics.items() if name.startswith("val/")}
        log_metrics(trainer, {**values, "tokens": self.curves.tokens})
        row = {"steps": trainer.global_step, "tokens": self.curves.tokens}
        self.file.append({**row, "seconds": round(self.curves.seconds, 2), **values})

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        values = {name: value for name, value in pl_module.metrics.items() if name.startswith("test/")}
        log_metrics(trainer, {**values, "tokens": self.curves.tokens})


RECL_THRESHOLD = 0.01  # of appendix C


class ContextCurves(Callback):
    """Scores fixed positions of the validation split with exactly c tokens of context, for several c.

    Logs `context/{bpc or ppl}/{c}` and `recl/{r}` over steps, and to W&B each measurement as a curve over c too.
    RECL is that of a group with this model alone (appendix C); in a larger group it may differ. Every rank scores
    its share of the windows. Memory, streams and random state of the training stay unchanged.

    Args:
        options: interval, contexts and number of positions.
        tokens: the validation split.
        trained_len: tokens that absolute positions were trained with.
        clamp_len: larger distances share one position; None for the model's own.
        path: file that gets one line per measurement.
        curves: counts the tokens seen so far; the time of a measurement is excluded from its tokens/s.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(
        self,
        options: ContextCurveConfig,
        tokens: np.ndarray,
        trained_len: int,
        clamp_len: int | None,
        path: Path,
        curves: TrainingCurves,
    ) -> None:
        self.curves, self.options, self.tokens = curves, options, tokens
        self.trained_len, self.clamp_len = trained_len, clamp_len
        try:
            for name in ("every_n_steps", "first_context", "step"):
                value = getattr(options, name)
                require(value is None or value >= 1, name, value, "must be an integer >= 1")
            self.contexts = list(range(options.first_context, options.max_context + 1, options.step))
            check_definition(self.contexts, options.fractions, RECL_THRESHOLD, bootstrap=0)
            self.positions, self.blocks = position_blocks(len(tokens), options.n_positions, self.contexts)
        except OptionError as error:
            raise error.within("context_curve") from error
        self.file = CurveFile(path)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        every = self.options.every_n_steps
        if every is None or trainer.global_step % every:
            return
        assert isinstance(pl_module, LanguageModelModule)
        curve = context_curve(
            pl_module.model,
            self.tokens,
            self.positions,
            self.contexts,
            trained_len=self.trained_len,
            clamp_len=self.clamp_len,
            blocks=self.blocks,
            fractions=self.options.fractions,
            threshold=RECL_THRESHOLD,
            bootstrap=0,
        )
        if trainer.is_global_zero:
            self._log(trainer, pl_module, curve)
        self.curves.restart_clock()

    def _log(self, trainer: L.Trainer, pl_module: LanguageModelModule, curve: ContextCurve) -> None:
        unit = loss_unit(pl_module.level)
        values = [loss_metrics(nll, pl_module.level)[unit] for nll in curve.nll]
        scalars = {f"context/{unit}/{c}": value for c, value in zip(self.contexts, values, strict=True)}
        recl = {str(r): {"value": found.value, "at_least": found.at_least} for r, found in curve.recl.items()}
        scalars |= {f"recl/{r}": float(found["value"]) for r, found in recl.items()}
        log_metrics(trainer, {**scalars, "tokens": self.curves.tokens})
        for logger in trainer.loggers:
            if isinstance(logger, RepeatableWandbLogger):
                curves, title = {unit: values}, "Validation loss by context"
                logger.log_series("context/curve", self.contexts, curves, "context", title, trainer.global_step)
        row = {"steps": trainer.global_step, "contexts": self.contexts, "nll": curve.nll}
        self.file.append({**row, "standard_error": curve.standard_error, unit: values, "recl": recl})
