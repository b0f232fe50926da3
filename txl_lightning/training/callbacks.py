"""Callbacks that may end a run: those of a config, signals, a loss that is not finite. `make` makes loggers too."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from inspect import signature
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from txl_lightning.config.schemas import Config
from txl_lightning.distributed.processes import handled_signals
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, Stopped, UserError, first_line, notice, require
from txl_lightning.runs.metrics import loss_metrics

if TYPE_CHECKING:
    from txl_lightning.training.checkpointing import Checkpoints

UNFIT = {  # and what to use
    "WeightAveraging": "would save other weights than those that the memory comes from",
    "StochasticWeightAveraging": "would end with other weights than those that the memory comes from",
    "Checkpoint": "is not needed: checkpoint.every_n_steps, checkpoint.keep_every_n_steps",
    "ProgressBar": "is not needed: trainer.progress_bar",
    "GradientAccumulationScheduler": "is not needed: trainer.stream_groups",
    "BatchSizeFinder": "would train steps that the memory keeps: set data.batch_size",
    "LearningRateFinder": "would train steps that the memory keeps: txl train -m optimizer.lr=1e-3,2e-3",
    "BaseFinetuning": "would add groups to the optimizer, so that no checkpoint could be resumed",
    "SpikeDetection": "cannot load the state that it saves, so that no run could be resumed",
    "ModelPruning": "would rename weights, so that no checkpoint could be read",
}


def custom_callbacks(config: Config) -> list[Callback]:
    """Return the callbacks of `trainer.callbacks`.

    Raises:
        OptionError: one cannot be made, does not fit, has nothing to do in training, or monitors something else than a
            loss of validation.
    """
    made: list[Callback] = []
    for given in config.trainer.callbacks:
        callback = make(given, "trainer.callbacks", Callback)
        shown, monitor = f"[{given}]", getattr(callback, "monitor", None)
        for name, reason in UNFIT.items():
            require(not isinstance(callback, getattr(of_lightning, name)), "trainer.callbacks", shown, reason)
        hooks = [name for name in dir(Callback) if name[0] != "_" and name != "state_key"]
        functions = {name: getattr(getattr(callback, name), "__func__", None) for name in hooks}
        own = [name for name in hooks if functions[name] is not getattr(Callback, name)]
        acts = any(name.startswith("on_") and "predict" not in name for name in own)
        only = not acts and any("predict" in name for name in own)
        require(not only, "trainer.callbacks", shown, "has no effect: a training predicts nothing")
        for hook in hooks:
            function = f"{hook} is no function: {{_target_: hydra.utils.get_method, path: MODULE.FUNCTION}}"
            require(callable(getattr(callback, hook)), "trainer.callbacks", shown, function)
        monitored = [f"val/{name}" for name in loss_metrics(0.0, config.data.level)]
        allowed = f"must monitor one of {', '.join(monitored)}"
        require(monitor is None or monitor in monitored, "trainer.callbacks", shown, allowed)
        made.append(callback)
    return made


def is_custom(callback: Callback) -> bool:
    """Return whether a callback is not of this package."""
    return not type(callback).__module__.startswith("txl_lightning.")


def states_of(callbacks: Iterable[Callback], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of callbacks in a checkpoint, with the options of custom ones as they are now."""
    states = {callback.state_key: saved[callback.state_key] for callback in callbacks if callback.state_key in saved}
    for callback in filter(is_custom, callbacks):
        state: Any = states.get(callback.state_key)
        for name in signature(type(callback)).parameters if isinstance(state, dict) else ():
            if name in state and hasattr(callback, name):
                state[name] = getattr(callback, name)
    return states


def make(given: Any, option: str, kind: type, defaults: Mapping[str, Any] | None = None) -> Any:
    """Return an object of the class `given["_target_"]`, made by Hydra, objects within its arguments too.

    Args:
        given: class and arguments.
        option: where it was given, for errors.
        kind: class that the object must have.
        defaults: arguments that it gets if its class takes them and they are not given.

    Raises:
        OptionError: it cannot be made.
    """
    shown, defaults = given.get("_target_") if isinstance(given, Mapping) else given, dict(defaults or {})
    require(isinstance(given, Mapping) and "." in str(shown), option, shown, "must be {_target_: MODULE.CLASS, …}")
    module, _, name = str(shown).rpartition(".")
    try:
        target = getattr(import_module(module), name)
        other = any("'pytorch_lightning." in str(base) for base in getattr(target, "__mro__", ()))
        here = "; it is of pytorch_lightning, here Lightning is lightning.pytorch" if other else ""
        fits = isinstance(target, type) and issubclass(target, kind)
        require(fits, option, shown, f"is no Lightning {kind.__name__}{here}")
        taken = signature(target).parameters
        if "project" in taken and defaults:  # beside a project these name the run, else the experiment
            defaults |= dict.fromkeys(("name", "experiment_name"), defaults["run_name"])
        found = instantiate({**{n: v for n, v in defaults.items() if n in taken}, **given}, _convert_="all")
        require(isinstance(found, kind), option, shown, f"makes no Lightning {kind.__name__}")
        return found
    except OptionError:
        raise
    except (Exception, SystemExit) as error:  # of anybody's class
        cause = error.__cause__ or error
        raise OptionError(option, shown, f"cannot be made: {type(cause).__name__}: {first_line(cause)}") from error


def _custom(frames: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[Callback, str]]:
    """Yield the callbacks of others whose methods run in these frames, each with file and line."""
    for frame, line in frames:
        for owner in (frame.f_locals.get("callback"), frame.f_locals.get("self")):  # Lightning calls functions too
            if isinstance(owner, Callback) and is_custom(owner):
                yield owner, f"{frame.f_code.co_filename}, line {line}"


class Trainer(L.Trainer):
    """Lightning's Trainer, which notes the callback that ends a training before its last step.

    Attributes:
        ended_before: `ended_by` of the run that is evaluated again; None for one that trains.
    """

    _ender: Callback | None = None
    ended_before: str | None = None

    @property
    def ended_by(self) -> str | None:
        """Class of the callback that ended the training, with its reason if it has one; None if none did."""
        reason = getattr(self._ender, "stopping_reason_message", None)
        why = f" ({reason.split(' Signaling')[0]})" if reason else ""
        return self.ended_before if self._ender is None else f"{type(self._ender).__name__}{why}"

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "should_stop" and value and not self.should_stop:
            self._ender = next((callback for callback, _ in _custom(walk_stack(None))), None)
        super().__setattr__(name, value)


@contextmanager
def naming_callbacks() -> Iterator[None]:
    """Name the custom callback that ended a run, and where: a run without results never ends with status 0.

    Raises:
        UserError: Lightning refuses it, it raised an error, or its code, or that of a custom logger, SystemExit or
            KeyboardInterrupt.
    """
    try:
        yield
    except UserError:
        raise
    except MisconfigurationException as error:  # ours fit
        raise UserError(f"trainer.callbacks: Lightning says: {first_line(error)}") from error
    except (Exception, SystemExit) as error:
        interrupted = isinstance(error.__context__, KeyboardInterrupt)  # of which Lightning makes SystemExit
        raised: Any = error.__context__ if interrupted else error
        found = list(_custom(walk_tb(raised.__traceback__)))
        if not found and isinstance(error, Exception):
            raise
        who, where = (type(found[-1][0]).__name__, f" ({found[-1][1]})") if found else ("code of others", "")
        text = " ".join([who, "raised", type(raised).__name__, *str(raised).splitlines()[:1]])
        raise UserError(f"trainer.callbacks: {text}{where}") from error


class SignalError(BaseException):
    """Raised by a signal handler, wherever the run is: code that handles a bad file's errors must not see it."""


class StopSignals(Callback):
    """Ends the run at SIGTERM, SIGINT, SIGHUP or SIGUSR1 inside its `with` block, which then raises `Stopped`.

    While steps are trained a signal is only noted; after the step the state is saved and the run stops. It may reach
    the ranks at different times: they agree in every step, so that all of them save the same one. A validation due at
    that step runs first, as it would without the signal. Before and after training there is nothing to save and the run
    stops at once, as it does at a second Ctrl-C.

    Args:
        ranks: the processes of the run.

    Attributes:
        checkpoints: saves the state; None if checkpoints are disabled.
        signum: first signal received; 0 without one.
        agreed: signal that the ranks have agreed on; 0 without one.
        training: whether steps are being trained; None before.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoints: Checkpoints | None = None
        self.signum = self.agreed = 0
        self.training: bool | None = None
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
            raise Stopped(f"stopped by {name}{self._to_continue()}", error.args[0]) from None

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

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.training = False

    def on_before_optimizer_step(self, *step: Any) -> None:
        # Fails at once if a rank died; on a GPU, waiting for its gradients would not end.
        self.agreed = self.ranks.largest(self.signum)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        kept = self.checkpoints
        if not self.agreed or (kept is not None and kept.validation_is_due(trainer)):
            return
        if kept is not None and kept.saved_step != trainer.global_step:
            kept.save(trainer)
        self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self.agreed = self.ranks.largest(self.agreed or self.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        by = f"stopped by {signal.Signals(self.agreed).name} after step {trainer.global_step}"
        raise Stopped(by + self._to_continue(), self.agreed)

    def _to_continue(self) -> str:
        kept = self.checkpoints if self.training is not None else None
        return f"; {kept.to_continue}" if kept is not None and kept.saved_step >= 0 else ""


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
