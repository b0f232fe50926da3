"""Ends of a run that are not its planned end: a signal, or losses that are not finite."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.data.streams.ordered import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import Stopped, UserError
from txl_lightning.training.callbacks.checkpointing import Checkpoints
from txl_lightning.training.module import LanguageModelModule

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # the last is SLURM's usual warning before a time limit


class CleanStop(Callback):
    """On SIGTERM, SIGINT or SIGUSR1, save after the step that is under way, and stop.

    The ranks may hear of it at different times: after every step they agree, and all save the same one. A
    validation that is due at that step is made first, as it would be in a run that nobody stops. Before and
    after training there is nothing to save, and the run stops at once, as it does at a second Ctrl-C.

    It is a context manager too, in which it hears the signals. Lightning's own handlers must not be there:
    they talk to the other ranks from within the signal.

    Args:
        ranks: the processes of the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoints: Checkpoints | None = None
        self.signum = self.agreed = 0
        self._heard_at = 0.0
        self._training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> CleanStop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, signum: int, frame: Any) -> None:
        again = signum == self.signum == signal.SIGINT
        if again and time.monotonic() - self._heard_at < 1.0:  # from the terminal, and from the process that started us
            return
        self.signum = self.signum or signum
        self._heard_at = time.monotonic()
        if again or not self._training:
            raise Stopped(f"stopped by {signal.Signals(signum).name}", signum)
        if self.ranks.rank == 0:  # not print, which the signal may have interrupted
            os.write(2, f"{signal.Signals(signum).name}: saving after this step, then stopping\n".encode())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on there is something to save."""
        self._training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The run saves itself."""
        self._training = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Agree with the other ranks; save and stop."""
        self.agreed = self.ranks.largest(self.signum)
        if not self.agreed:
            return
        if self.checkpoints is None:
            self._stop(trainer)
        elif not self.checkpoints.validation_is_due(trainer):
            if self.checkpoints.saved_step != trainer.global_step:
                self.checkpoints.save(trainer)
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
                f"step {trainer.global_step}; {good}; a lower optimizer.lr may help, with initial_weights= from there"
            )
        if self.rank == 0:
            norm = f"the gradient's norm over all ranks is {float(pl_module.gradient_norm):.4g}"
            print(f"step {trainer.global_step} skipped: {norm}", file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """How many there were."""
        return {"total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting; those in a row begin anew."""
        self.total = state_dict["total"]
