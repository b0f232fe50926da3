"""Ends of a run that are not its planned end: a signal, or losses that are not finite."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.data.streams import Segment
from txl_lightning.errors import Stopped, UserError
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.ranks import Ranks
from txl_lightning.training.saving import Checkpoints

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CleanStop(Callback):
    """On SIGTERM or SIGINT, save after the step that is under way, and stop; a second SIGINT stops at once.

    The ranks may hear of it at different times: after every step they agree, and all save the same one. A
    validation that is due at that step is made first, as it would be in a run that nobody stops.

    Args:
        ranks: the processes of the run.
        checkpoints: what saves; None to stop without.
        val_every_n_steps: validation in mid-epoch; None at its end.
    """

    def __init__(self, ranks: Ranks, checkpoints: Checkpoints | None, val_every_n_steps: int | None) -> None:
        self.ranks, self.checkpoints, self.val_every_n_steps = ranks, checkpoints, val_every_n_steps
        self.signum = 0
        self.agreed = 0
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Lightning's own handler would talk to the other ranks from within the signal."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._heard) for number in SIGNALS}

    def _heard(self, signum: int, frame: Any) -> None:
        if signum == signal.SIGINT and self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = self.signum or signum
        if self.ranks.rank == 0:
            print(f"{signal.Signals(signum).name}: saving after this step, then stopping", file=sys.stderr, flush=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Agree with the other ranks; save and stop."""
        self.agreed = self.ranks.largest(self.signum)
        if self.agreed:
            if self.checkpoints is not None and self.checkpoints.saved_step != trainer.global_step:
                self.checkpoints.save(trainer)
            every = self.val_every_n_steps
            if not (trainer.is_last_batch if every is None else trainer.global_step % every == 0):
                self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The validation that was due is done, and its checkpoint written."""
        if trainer.state.fn == TrainerFn.FITTING:
            self.agreed = self.ranks.largest(self.agreed or self.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        step, saved = trainer.global_step, ""
        if self.checkpoints is not None and self.checkpoints.saved_step == step:
            saved = f"; resume={self.checkpoints.last} goes on from there"
        raise Stopped(f"stopped by {signal.Signals(self.agreed).name} after step {step}{saved}", self.agreed)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class SkippedSteps(Callback):
    """Counts the steps that the module skipped because their loss or gradient was not finite.

    Args:
        limit: how many in a row end the run.
        rank: the first one reports.
        checkpoints: to name the last good state.
    """

    def __init__(self, limit: int, rank: int, checkpoints: Checkpoints | None) -> None:
        self.limit, self.rank, self.checkpoints = limit, rank, checkpoints
        self.total = self.in_a_row = 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Count, report, and give up after too many."""
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
                f"the loss or its gradient was not finite in {self.in_a_row} steps in a row, the last of them "
                f"step {trainer.global_step}: lower optimizer.lr; {good}"
            )
        if self.rank == 0:
            loss = f"loss {float(pl_module.loss):.4g}, gradient norm {float(pl_module.gradient_norm):.4g}"
            print(f"step {trainer.global_step} skipped: {loss}", file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.total, self.in_a_row = state_dict["total"], state_dict["in_a_row"]
