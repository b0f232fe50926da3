"""Callbacks for a run: signals, the validation curve, loss curves by context, progress on the terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError, Stopped
from txl_lightning.evaluation.units import loss_unit, shown_units, unit_name
from txl_lightning.files import write_text
from txl_lightning.jobs import handled_signals
from txl_lightning.ranks import Ranks
from txl_lightning.recl.loss_by_context import context_curve
from txl_lightning.recl.positions import position_blocks
from txl_lightning.training import Values
from txl_lightning.training.checkpoints import RunCheckpoint, validation_follows
from txl_lightning.training.loggers import log_values, wandb_runs


class SignalError(BaseException):
    """Raised by a signal handler, wherever the run is: code that handles a bad file's errors must not see it."""


class StopSignals(Checkpoint):
    """Ends the run at SIGTERM, SIGINT, SIGHUP or SIGUSR1 inside its `with` block, which then raises `Stopped`.

    While steps are trained a signal is only noted; after the step the state is saved and the run stops. It may reach
    the ranks at different times: they agree in every step, so all save the same one. A validation due at that step runs
    first, as it would without the signal. Before and after training there is nothing to save and the run stops at once,
    as it does at a second Ctrl-C.

    It is a checkpoint callback because Lightning calls those last.

    Args:
        ranks: the run's processes.

    Attributes:
        checkpoint: saves the state; None if checkpoints are disabled.
        signum: first signal received; 0 without one.
        agreed: signal that the ranks have agreed on; 0 without one.
        training: whether steps are being trained.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoint: RunCheckpoint | None = None
        self.signum = 0
        self.agreed = 0
        self.training = False
        self._received_at = 0.0
        self._handlers = ExitStack()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._handlers.enter_context(handled_signals(self._handle))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._handlers.close()
        if isinstance(error, SignalError):
            signum = error.args[0]
            raise Stopped(
                f"stopped by {signal.Signals(signum).name}{self._to_continue()}", signum
            ) from None

    def _handle(self, signum: int, frame: Any) -> None:
        is_again = signum == self.signum == signal.SIGINT
        now = time.monotonic()
        # One Ctrl-C may come twice, from the terminal and from the parent.
        if is_again and now - self._received_at < 1.0:
            return
        self.signum = self.signum or signum
        self._received_at = now
        if is_again or not self.training:
            raise SignalError(signum)
        if self.ranks.rank == 0:  # print is not reentrant
            os.write(
                2,
                f"{signal.Signals(signum).name}: saving after this step, then stopping\n".encode(),
            )

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.training = True

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.training = False

    def on_before_optimizer_step(self, *step: Any) -> None:
        # Fails at once if a rank died; on a GPU, waiting for its gradients would not end.
        self.agreed = self.ranks.largest(self.signum)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *batch: Any) -> None:
        if (
            self.agreed
            and not trainer.fit_loop._should_accumulate()
            and not validation_follows(trainer)
        ):
            self._stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.agreed = self.ranks.largest(self.agreed or self.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        if self.checkpoint is not None and self.checkpoint.saved_step != trainer.global_step:
            self.checkpoint.save(trainer)
        name = signal.Signals(self.agreed).name
        raise Stopped(
            f"stopped by {name} after step {trainer.global_step}{self._to_continue()}", self.agreed
        )

    def _to_continue(self) -> str:
        if self.checkpoint is None or self.checkpoint.saved_step < 0:
            return ""
        return f"; {self.checkpoint.to_continue}"


class Curve(Callback):
    """Rows of measurements in a file of JSON lines. A checkpoint holds those before it: a resumed run repeats none.

    Args:
        path: path of the file.

    Attributes:
        rows: each with the number of `steps` after which it was measured.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Values] = []

    def append(self, row: Values) -> None:
        """Add a row to the file."""
        self.rows.append(row)
        lines = [f"{json.dumps(row)}\n" for row in self.rows]
        write_text(self.path, "".join(lines))

    def state_dict(self) -> Values:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: Values) -> None:
        self.rows = state_dict["rows"]


class ValidationCurve(Curve):
    """Writes a `validation.jsonl` line for each validation: steps, tokens, seconds, nll, and ppl, bpc or bpb.

    Args:
        directory: run directory.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "validation.jsonl")
        self._seconds_before = 0.0
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """This run's wall-clock time, including earlier sessions up to their last checkpoint."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._started = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if not trainer.is_global_zero:
            return
        row = {
            "steps": trainer.global_step,
            "tokens": pl_module.tokens,
            "seconds": round(self.seconds, 2),
        }
        for name, value in pl_module.metrics.items():
            if name.startswith("val/"):
                row[name] = value
        self.append(row)

    def state_dict(self) -> Values:
        return {**super().state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state_dict: Values) -> None:
        super().load_state_dict(state_dict)
        self._seconds_before = state_dict["seconds"]


N_CONTEXTS = 8
N_POSITIONS = 500
FRACTIONS = [0.1, 0.5, 1.0]
RECL_THRESHOLD = 0.01  # in appendix C


class ContextCurves(Curve):
    """Scores fixed positions in the validation split with exactly c context tokens, for several c.

    Logs and writes `context/{unit}/{c}`, `context/within_1_percent`, `recl/{r}` and `recl/{r}/guarded` over steps. When
    training ends, `context_curve.png` shows the losses over steps. RECL is measured in a group with this model alone
    (appendix C); a larger group may give another value. Every rank scores its share of the windows. Training's memory,
    streams and random state stay unchanged. A measurement's time is excluded from tokens/s.

    Args:
        config: its `context_curve`, and training's lengths.
        tokens: the validation split.
        directory: run directory, for `context_curve.jsonl`.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(self, config: Config, tokens: np.ndarray, directory: Path) -> None:
        super().__init__(directory / "context_curve.jsonl")
        longest = config.context_curve.max_context
        self.every_n_steps = config.context_curve.every_n_steps or sys.maxsize
        self.tokens = tokens
        self.contexts = [longest // N_CONTEXTS * (i + 1) for i in range(N_CONTEXTS)]
        n_positions = max(
            1,
            min(N_POSITIONS, len(tokens) - longest),
        )
        try:
            self.positions, blocks = position_blocks(
                len(tokens),
                n_positions,
                self.contexts,
            )
        except OptionError as error:
            raise OptionError("context_curve.max_context", longest, error.allowed) from error
        self.definition: Values = {
            "blocks": blocks,
            # Absolute positions reach as far as in training; larger distances share one.
            "trained_len": training_lengths(config).window,
            "clamp_len": trained_clamp(config),
            "fractions": FRACTIONS,
            "threshold": RECL_THRESHOLD,
            "bootstrap": 0,
        }

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *batch: Any) -> None:
        if trainer.fit_loop._should_accumulate() or trainer.global_step % self.every_n_steps:
            return
        entries = context_curve(
            pl_module.model,
            self.tokens,
            self.positions,
            self.contexts,
            level=pl_module.level,
            **self.definition,
        )
        if trainer.is_global_zero:
            self._log(trainer, pl_module, entries)
        pl_module.restart_clock()

    def _log(self, trainer: Trainer, module: Any, entries: Values) -> None:
        unit = loss_unit(module.level)
        values: Values = {
            "tokens": module.tokens,
            "context/within_1_percent": entries["within_1_percent"],
        }
        for c, loss in zip(self.contexts, entries[unit], strict=True):
            values[f"context/{unit}/{c}"] = loss
        for r, length in entries["recl"].items():
            values[f"recl/{r}"] = length["value"]
            values[f"recl/{r}/guarded"] = length["guarded"]
        log_values(trainer, values)
        self.append({"steps": trainer.global_step, **values})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero or not self.rows:
            return
        from txl_lightning.reporting.canvas import line_figure  # imports matplotlib
        from txl_lightning.reporting.wandb_panels import log_file

        unit = loss_unit(pl_module.level)
        curves = {}
        for c in self.contexts:
            name = f"context/{unit}/{c}"
            # Rows before a resume may have other contexts.
            rows = [row for row in self.rows if name in row]
            steps = [row["steps"] for row in rows]
            curves[f"{c} tokens"] = (steps, [row[name] for row in rows])
        path = self.path.with_suffix(".png")
        line_figure(
            path, curves, "steps", unit_name(pl_module.level), "Loss by context, during training"
        )
        for run in wandb_runs(trainer):
            log_file(run, "context_curve", path)


class Progress(Callback):
    """Prints a line on stderr every ten seconds, later every hundredth of the run, and one for each validation."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._interval = 10.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *batch: Any) -> None:
        if not self._is_due():
            return
        step = trainer.global_step
        line = f"{step:,}/{trainer.max_steps:,} steps"
        per_second = pl_module.latest.get("train/tokens_per_second")
        if per_second:
            seconds = (trainer.max_steps - step) * pl_module.tokens / step / per_second
            line += f", {timedelta(seconds=round(seconds))} left"
            line += f", {_losses(pl_module.latest, 'train/')}"
            line += f", {per_second:,.0f} tokens/s"
        self._show(trainer, line)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *batch: Any) -> None:
        split = "validation"
        numbers = trainer.num_val_batches
        if trainer.testing:
            split = "test"
            numbers = trainer.num_test_batches
        if self._is_due():
            number = batch[2] + 1
            self._show(
                trainer,
                f"{split}: segment {number:,} of {numbers[0]:,}",
            )

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        when = f"step {trainer.global_step:,}"
        if trainer.state.fn != TrainerFn.FITTING:
            when = "best weights, validation split"
        if not trainer.sanity_checking:
            self._show(
                trainer,
                f"{when}: {_losses(pl_module.metrics, 'val/')}",
            )

    def _is_due(self) -> bool:
        return time.monotonic() - self._shown >= self._interval

    def _show(self, trainer: Trainer, line: str) -> None:
        self._shown = time.monotonic()
        self._interval *= 1.01
        if trainer.is_global_zero:
            print(line, file=sys.stderr, flush=True)


def _losses(values: dict[str, float], prefix: str) -> str:
    names = [f"{prefix}{unit}" for unit in shown_units(values, prefix)]
    return ", ".join(f"{name} {values[name]:.3f}" for name in names)
