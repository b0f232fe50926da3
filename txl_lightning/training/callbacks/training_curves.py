"""Curves of training: loss, learning rate, gradient norm, memory length, tokens/s."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from txl_lightning.data.streams.ordered import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.training.loggers.log_metrics import log_metrics
from txl_lightning.training.module import LanguageModelModule


class TrainingCurves(Callback):
    """Logs loss, bpc or ppl, learning rate, gradient norm, memory length and tokens/s every n steps.

    The loss is the mean over the tokens of all ranks since the last log entry, without those of skipped steps.

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
        self._tokens = self._tokens_before = 0
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
        if not pl_module.step_skipped:
            self._nll_sum = self._nll_sum + pl_module.loss * n_tokens
            self._tokens += n_tokens
        if trainer.global_step % self.every_n_steps == 0 or trainer.global_step == trainer.max_steps:
            self._log(trainer, pl_module)

    def _log(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        nll_sum, tokens, n_recent = self.ranks.total(
            float(self._nll_sum), self._tokens, self._tokens - self._tokens_before
        )
        values = loss_metrics(nll_sum / tokens, module.level) if tokens else {}
        memory = module.training_memory.memory
        self.latest = {f"train/{name}": value for name, value in values.items()} | {
            "train/tokens_per_second": n_recent / (time.perf_counter() - self._since),
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train/gradient_norm": float(module.gradient_norm),
            "train/memory_length": float(getattr(memory, "filled", 0)),
        }
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
        since = self.ranks.gather((float(self._nll_sum), self._tokens))
        return {"tokens": self.tokens, "seconds": self.seconds, "since": since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts; on another number of ranks, rank 0 takes the sums of all."""
        self.tokens, self._seconds_before = state_dict["tokens"], state_dict["seconds"]
        sums, W = state_dict["since"], self.ranks.world_size
        if len(sums) == W:
            self._nll_sum, self._tokens = sums[self.ranks.rank]
        elif self.ranks.rank == 0:
            self._nll_sum, self._tokens = (sum(part) for part in zip(*sums, strict=True))
