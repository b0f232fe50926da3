"""Curves of training: loss, learning rate, gradient norm, memory length, tokens/s, MFU, peak memory."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.utilization import peak_flops, peak_memory, training_flops
from txl_lightning.training.loggers.log_metrics import log_metrics
from txl_lightning.training.module import LanguageModelModule


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
