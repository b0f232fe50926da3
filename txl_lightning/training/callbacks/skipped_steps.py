"""Steps that were skipped because their loss or gradient was not finite."""

from __future__ import annotations

import sys
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from txl_lightning.data.streams.ordered import Segment
from txl_lightning.errors import UserError
from txl_lightning.training.callbacks.checkpointing import Checkpoints
from txl_lightning.training.module import LanguageModelModule


class SkippedSteps(Callback):
    """Counts the steps that the module skipped because the loss or the gradient was not finite.

    Args:
        limit: number of consecutive skipped steps that ends the run.
        rank: of this process; rank 0 reports.
        checkpoints: knows the last good checkpoint; None if checkpoints are disabled.

    Attributes:
        total: skipped steps since the run began.
        in_a_row: consecutive skipped steps up to now; a resumed run starts at 0.
    """

    def __init__(self, limit: int, rank: int, checkpoints: Checkpoints | None) -> None:
        self.limit, self.rank, self.checkpoints = limit, rank, checkpoints
        self.total = self.in_a_row = 0

    @property
    def state_key(self) -> str:
        return "SkippedSteps"

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        if not pl_module.step_skipped:
            self.in_a_row = 0
            return
        self.total, self.in_a_row = self.total + 1, self.in_a_row + 1
        if self.in_a_row >= self.limit:
            good = "no checkpoint was written yet"
            if self.checkpoints is not None and self.checkpoints.saved_step >= 0:
                good = f"the last good checkpoint is {self.checkpoints.last} (step {self.checkpoints.saved_step})"
            raise UserError(
                f"the loss or its gradient was not finite in {self.in_a_row} consecutive steps up to step "
                f"{trainer.global_step}; {good}; try initial_weights= with it and a lower optimizer.lr"
            )
        if self.rank == 0:
            norm = f"the gradient norm is {float(pl_module.gradient_norm):.4g}"
            print(f"step {trainer.global_step} skipped: {norm}", file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["total"]
