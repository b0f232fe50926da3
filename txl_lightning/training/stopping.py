"""Runs that end early: on a signal, or because the loss is not finite."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.processes import handled_signals
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import Stopped, UserError, notice
from txl_lightning.training.checkpointing import Checkpoints


class SignalError(BaseException):
    """Raised by a signal handler, wherever the run is: code that handles a bad file's errors must not see it."""


class StopSignals:
    """Receives SIGTERM, SIGINT, SIGHUP and SIGUSR1 inside its `with` block.

    While steps are trained a signal is only noted: `CleanStop` saves and stops after the step. Before and after there
    is nothing to save and the run stops at once, as it does at a second Ctrl-C: the block raises `Stopped`.

    Args:
        ranks: the processes of the run.

    Attributes:
        signum: first signal received; 0 without one.
        training: whether steps are being trained: a signal is then noted, and `CleanStop` ends the run after a step.
        to_continue: returns the end of the message, how to continue the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.signum = 0
        self.training = False
        self.to_continue: Callable[[], str] = str
        self._received_at = 0.0
        self._handlers = ExitStack()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._handlers.enter_context(handled_signals(self._handle))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._handlers.close()
        if isinstance(error, SignalError):
            name = signal.Signals(error.args[0]).name
            raise Stopped(f"stopped by {name}{self.to_continue()}", error.args[0]) from None

    def _handle(self, signum: int, frame: Any) -> None:
        again = signum == self.signum == signal.SIGINT
        if again and time.monotonic() - self._received_at < 1.0:  # one Ctrl-C, from the terminal and from the parent
            return
        self.signum = self.signum or signum
        self._received_at = time.monotonic()
        if again or not self.training:
            raise SignalError(signum)
        if self.ranks.rank == 0:  # print is not reentrant
            os.write(2, f"{signal.Signals(signum).name}: saving after this step, then stopping\n".encode())


def requeue(config: Config) -> None:
    """Put this process's job of SLURM back into its queue, and say whether it worked; nothing without SLURM.

    SLURM then starts the same command again, which must continue: `resume=auto`, with checkpoints.
    """
    job, rank = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_PROCID", "0")
    if job is None or rank != "0":
        return
    if config.resume != "auto" or not config.checkpoint.enabled:
        notice(f"SLURM job {job} is not requeued: it needs resume=auto, hydra.run.dir and checkpoint.enabled=true")
        return
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    notice(f"scontrol requeue {job}: {problem or 'the job continues when SLURM starts it again'}")


class CleanStop(Callback):
    """Saves after the current step and stops, once a signal was received.

    The signal may reach the ranks at different times: they agree in every step, so that all of them save the same one.
    A validation due at that step runs first, as it would without the signal.

    Args:
        signals: receives the signals.
        checkpoints: saves the state; None if checkpoints are disabled.
    """

    def __init__(self, signals: StopSignals, checkpoints: Checkpoints | None) -> None:
        self.signals, self.ranks, self.checkpoints = signals, signals.ranks, checkpoints
        self.agreed = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.signals.training, self.signals.to_continue = True, self._to_continue

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.signals.training = False

    def on_before_optimizer_step(self, *step: Any) -> None:
        # Fails at once if a rank died; on a GPU, waiting for its gradients would not end.
        self.agreed = self.ranks.largest(self.signals.signum)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
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
        by = f"stopped by {signal.Signals(self.agreed).name} after step {trainer.global_step}"
        raise Stopped(by + self._to_continue(), self.agreed)

    def _to_continue(self) -> str:
        kept = self.checkpoints
        return f"; {kept.to_continue}" if kept is not None and kept.saved_step >= 0 else ""


class FiniteLoss(Callback):
    """Ends a run whose loss or gradient is not finite, before a checkpoint holds it.

    The module's flag is read after every step on a CPU. On a GPU, where reading makes the CPU wait, it is read at log
    entries, before a checkpoint is written and after the last step.

    Args:
        config: has `trainer.log_every_n_steps` and `checkpoint.keep_every_n_steps`.
        ranks: the processes of the run.
        checkpoints: source of the last good checkpoint; None if checkpoints are disabled.
    """

    def __init__(self, config: Config, ranks: Ranks, checkpoints: Checkpoints | None) -> None:
        self.every = [n for n in (config.trainer.log_every_n_steps, config.checkpoint.keep_every_n_steps) if n]
        self.ranks, self.checkpoints = ranks, checkpoints

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step = trainer.global_step
        if pl_module.reads_are_free or step == trainer.max_steps or any(step % n == 0 for n in self.every):
            self.check(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.check(trainer, pl_module)

    def check(self, trainer: L.Trainer, module: Any) -> None:
        """Raise `UserError` if the loss or the gradient of a step was not finite."""
        broken = not bool(module.finite)
        if module.scales_gradients:  # the loss differs between ranks
            broken = bool(self.ranks.largest(broken))
        if broken:
            when = f"{'in' if module.reads_are_free else 'in or before'} step {trainer.global_step}"
            raise UserError(f"the loss or its gradient was not finite {when}; {self._good_checkpoint()}")

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
