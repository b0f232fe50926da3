"""Steps that were skipped because their loss or gradient was not finite."""

from __future__ import annotations

import sys
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from txl_lightning.data.streams import Segment
from txl_lightning.errors import UserError
from txl_lightning.training.callbacks.checkpointing import Checkpoints
from txl_lightning.training.module import LanguageModelModule


class SkippedSteps(Callback):
    """Counts the steps that the module skipped because the loss or the gradient was not finite.

    On a GPU the flags stay there and are read every n steps, because reading one makes the CPU wait.

    Args:
        limit: number of consecutive skipped steps that ends the run.
        rank: rank of this process; rank 0 reports.
        checkpoints: source of the last good checkpoint; None if checkpoints are disabled.
        every_n_steps: n; without a GPU flags are read after every step.

    Attributes:
        total: skipped steps since the run began.
        in_a_row: consecutive skipped steps up to now; a resumed run starts at 0.
    """

    def __init__(self, limit: int, rank: int, checkpoints: Checkpoints | None, every_n_steps: int = 1) -> None:
        self.limit, self.rank, self.checkpoints, self.every_n_steps = limit, rank, checkpoints, every_n_steps
        self.total = self.in_a_row = 0
        self._unread: list[tuple[int, Tensor, Tensor]] = []  # step, flag, gradient norm

    @property
    def state_key(self) -> str:
        return "SkippedSteps"

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        step = trainer.global_step
        self._unread.append((step, pl_module.step_skipped, pl_module.gradient_norm))
        if not pl_module.skips_on_device or step % self.every_n_steps == 0 or step == trainer.max_steps:
            self._read()

    def _read(self) -> None:
        """Count and report the steps since the last call."""
        unread, self._unread = self._unread, []
        flags = torch.stack([flag for _, flag, _ in unread]).tolist()
        for (step, _, norm), skipped in zip(unread, flags, strict=True):
            if not skipped:
                self.in_a_row = 0
                continue
            self.total, self.in_a_row = self.total + 1, self.in_a_row + 1
            if self.in_a_row >= self.limit:
                raise UserError(
                    f"the loss or its gradient was not finite in {self.in_a_row} consecutive steps up to step "
                    f"{step}; {self._good_checkpoint()}"
                )
            if self.rank == 0:
                norm_text = f"the gradient norm is {float(norm):.4g}"
                print(f"step {step} skipped: {norm_text}", file=sys.stderr, flush=True)

    def _good_checkpoint(self) -> str:
        """Checkpoint to go on from: later ones than the best may be of weights that had begun to diverge."""
        advice = "try initial_weights= with it and a lower optimizer.lr"
        if self.checkpoints is not None and self.checkpoints.best_path is not None:
            best = f"{self.checkpoints.best_path} (step {self.checkpoints.best_step})"
            return f"the last good checkpoint is {best}, of the lowest validation loss; {advice}"
        if self.checkpoints is not None and self.checkpoints.newest is not None:
            return f"the last checkpoint is {self.checkpoints.newest} (step {self.checkpoints.saved_step}); {advice}"
        return "no checkpoint was written yet; try a lower optimizer.lr"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total + sum(int(flag) for _, flag, _ in self._unread)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["total"]
