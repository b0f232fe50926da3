"""Clean stop of a run on a signal."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import Stopped
from txl_lightning.training.callbacks.checkpointing import Checkpoints

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # SLURM sends SIGUSR1 before the time limit


class CleanStop(Callback):
    """Saves after the current step and stops, on SIGTERM, SIGINT or SIGUSR1.

    The signal may reach the ranks at different times: they agree after every step, so that all of them save the
    same one. A validation due at that step runs first, as it would without the signal. Before and after training
    there is nothing to save and the run stops at once, as it does at a second Ctrl-C.

    The object is a context manager, too: its signal handlers are installed inside the `with` block.

    Args:
        ranks: the processes of the run.

    Attributes:
        checkpoints: saves the state; None if checkpoints are disabled.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoints: Checkpoints | None = None
        self.signum = self.agreed = 0
        self._received_at = 0.0
        self._training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> CleanStop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: Any) -> None:
        again = signum == self.signum == signal.SIGINT
        if again and time.monotonic() - self._received_at < 1.0:  # one Ctrl-C, from the terminal and from the parent
            return
        self.signum = self.signum or signum
        self._received_at = time.monotonic()
        if again or not self._training:
            raise Stopped(f"stopped by {signal.Signals(signum).name}", signum)
        if self.ranks.rank == 0:  # print is not reentrant
            os.write(2, f"{signal.Signals(signum).name}: saving after this step, then stopping\n".encode())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._training = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
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
        if trainer.state.fn == TrainerFn.FITTING:
            self.agreed = self.ranks.largest(self.agreed or self.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        step, saved = trainer.global_step, ""
        if self.checkpoints is not None and self.checkpoints.saved_step == step:
            saved = f"; to continue, repeat the command with resume={self.checkpoints.last}"
        raise Stopped(f"stopped by {signal.Signals(self.agreed).name} after step {step}{saved}", self.agreed)
