"""Runs that end early: on a signal, or after steps that were skipped because they were not finite."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.distributed.parent_watch import handle_stop_signals
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import Stopped, UserError
from txl_lightning.training.checkpointing import Checkpoints


class StopSignals:
    """Receives SIGTERM, SIGINT, SIGHUP and SIGUSR1 inside its `with` block.

    While steps are trained a signal is only noted: `CleanStop` saves and stops after the step. Before and after there
    is nothing to save and the run stops at once, as it does at a second Ctrl-C.

    Args:
        ranks: the processes of the run.

    Attributes:
        signum: first signal received; 0 without one.
        training: whether `CleanStop` will stop the run after the current step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.signum = 0
        self.training = False
        self._received_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = handle_stop_signals(self._handle)
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
        if again or not self.training:
            raise Stopped(f"stopped by {signal.Signals(signum).name}", signum)
        if self.ranks.rank == 0:  # print is not reentrant
            os.write(2, f"{signal.Signals(signum).name}: saving after this step, then stopping\n".encode())


class CleanStop(Callback):
    """Saves after the current step and stops, once a signal was received.

    The signal may reach the ranks at different times: they agree after every step, so that all of them save the
    same one. A validation due at that step runs first, as it would without the signal.

    Args:
        signals: receives the signals.
        checkpoints: saves the state; None if checkpoints are disabled.
    """

    def __init__(self, signals: StopSignals, checkpoints: Checkpoints | None) -> None:
        self.signals, self.ranks, self.checkpoints = signals, signals.ranks, checkpoints
        self.agreed = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.signals.training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.signals.training = False

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        self.agreed = self.ranks.largest(self.signals.signum)
        if not self.agreed:
            return
        if self.checkpoints is None:
            self._stop(trainer)
        elif not self.checkpoints.validation_is_due(trainer):
            if self.checkpoints.saved_step != trainer.global_step:
                self.checkpoints.save(trainer)
            self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self.agreed = self.ranks.largest(self.agreed or self.signals.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        step, saved = trainer.global_step, ""
        if self.checkpoints is not None and self.checkpoints.saved_step == step:
            saved = f"; to continue, repeat the command with resume={self.checkpoints.newest}"
        raise Stopped(f"stopped by {signal.Signals(self.agreed).name} after step {step}{saved}", self.agreed)


class SkippedSteps(Callback):
    """Counts the steps that the module skipped because the loss or the gradient was not finite.

    On a GPU the flags stay there and are read every n steps, because reading one makes the CPU wait.

    Args:
        trainer: `max_nonfinite_steps` consecutive skipped steps end the run; n is `log_every_n_steps`. Without a GPU
            flags are read after every step.
        ranks: the processes of the run.
        checkpoints: source of the last good checkpoint; None if checkpoints are disabled.

    Attributes:
        total: skipped steps since the run began.
        in_a_row: consecutive skipped steps up to now; a resumed run starts at 0.
    """

    def __init__(self, trainer: TrainerConfig, ranks: Ranks, checkpoints: Checkpoints | None) -> None:
        self.limit, self.every_n_steps = trainer.max_nonfinite_steps, trainer.log_every_n_steps
        self.ranks, self.checkpoints = ranks, checkpoints
        self.total = self.in_a_row = 0
        self._unread: list[tuple[int, Tensor, Tensor]] = []  # step, flag, gradient norm

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
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
            self.ranks.report(f"step {step} skipped: the gradient norm is {float(norm):.4g}")

    def _good_checkpoint(self) -> str:
        """Checkpoint to go on from: later ones than the best may be of weights that had begun to diverge."""
        kept = self.checkpoints
        if kept is None or kept.newest is None:
            return "no checkpoint was written yet; try a lower optimizer.lr"
        found = f"the last checkpoint is {kept.newest} (step {kept.saved_step})"
        if kept.best_path is not None:
            best = f"{kept.best_path} (step {kept.best['step']})"
            found = f"the last good checkpoint is {best}, of the lowest validation loss"
        return f"{found}; try initial_weights= with it and a lower optimizer.lr"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total + sum(int(flag) for _, flag, _ in self._unread)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["total"]
