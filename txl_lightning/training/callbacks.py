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

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import Config
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, Stopped
from txl_lightning.evaluation.units import loss_metrics, loss_unit, shown_units, unit_name
from txl_lightning.files import append_text, write_text
from txl_lightning.jobs import handled_signals
from txl_lightning.recl.loss_by_context import ContextCurve, context_curve
from txl_lightning.recl.positions import position_blocks
from txl_lightning.training.checkpoints import LastCheckpoint, validation_follows


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
        self.checkpoint: LastCheckpoint | None = None
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
        if (
            is_again and now - self._received_at < 1.0
        ):  # one Ctrl-C, from the terminal and from the parent
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

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.training = False

    def on_before_optimizer_step(self, *step: Any) -> None:
        # Fails at once if a rank died; on a GPU, waiting for its gradients would not end.
        self.agreed = self.ranks.largest(self.signum)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        if (
            self.agreed
            and not trainer.fit_loop._should_accumulate()
            and not validation_follows(trainer)
        ):
            self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.agreed = self.ranks.largest(self.agreed or self.signum)
            if self.agreed:
                self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
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


class CurveFile:
    """JSON lines, each with the number of `steps` after which it was measured."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: dict[str, Any]) -> None:
        """Append one whole line."""
        append_text(self.path, f"{json.dumps(row)}\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, but for a last one that a kill or a full disk has cut short."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8", "replace").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def keep_until(self, step: int) -> None:
        """Remove rows for steps that a resumed run does again."""
        text = ""
        for row in self.rows():
            if row["steps"] <= step:
                text += f"{json.dumps(row)}\n"
        if self.path.exists():
            write_text(self.path, text)


class ValidationCurve(Callback):
    """Writes a `validation.jsonl` line for each validation: steps, tokens, seconds, nll, and ppl, bpc or bpb.

    Args:
        directory: run directory.

    Attributes:
        file: the curve.
    """

    def __init__(self, directory: Path) -> None:
        self.file = CurveFile(directory / "validation.jsonl")
        self._seconds_before = 0.0
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """This run's wall-clock time, including earlier sessions up to their last checkpoint."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = time.perf_counter()
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if (
            trainer.state.fn != TrainerFn.FITTING
            or trainer.sanity_checking
            or not trainer.is_global_zero
        ):
            return
        row = {
            "steps": trainer.global_step,
            "tokens": pl_module.tokens,
            "seconds": round(self.seconds, 2),
        }
        for name, value in pl_module.metrics.items():
            if name.startswith("val/"):
                row[name] = value
        self.file.append(row)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = state_dict["seconds"]


N_CONTEXTS = 8
N_POSITIONS = 500
FRACTIONS = [0.1, 0.5, 1.0]
RECL_THRESHOLD = 0.01  # in appendix C


class ContextCurves(Callback):
    """Scores fixed positions in the validation split with exactly c context tokens, for several c.

    Logs `context/{unit}/{c}`, `context/within_1_percent`, `recl/{r}` and `recl/{r}/guarded` over steps, in the words
    that `recl.json` uses. When training ends, `context_curve.png` shows the losses over steps. RECL is measured in a
    group with this model alone (appendix C); a larger group may give another value. Every rank scores its share of the
    windows. Training's memory, streams and random state stay unchanged. A measurement's time is excluded from tokens/s.

    Args:
        config: its `context_curve`, and training's lengths.
        tokens: the validation split.
        directory: run directory, for `context_curve.jsonl`.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(self, config: Config, tokens: np.ndarray, directory: Path) -> None:
        longest = config.context_curve.max_context
        self.file = CurveFile(directory / "context_curve.jsonl")
        self.every_n_steps = config.context_curve.every_n_steps or sys.maxsize
        self.tokens = tokens
        self.contexts = [longest // N_CONTEXTS * (i + 1) for i in range(N_CONTEXTS)]
        n_positions = max(1, min(N_POSITIONS, len(tokens) - longest))
        try:
            self.positions, blocks = position_blocks(len(tokens), n_positions, self.contexts)
        except OptionError as error:
            raise OptionError("context_curve.max_context", longest, error.allowed) from error
        self.definition: dict[str, Any] = {
            "blocks": blocks,
            # Absolute positions reach as far as in training; larger distances share one.
            "trained_len": training_lengths(config).window,
            "clamp_len": trained_clamp(config),
            "fractions": FRACTIONS,
            "threshold": RECL_THRESHOLD,
            "bootstrap": 0,
        }
        self._measured_step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._measured_step = trainer.global_step
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step = trainer.global_step
        if step % self.every_n_steps or step == self._measured_step:
            return
        self._measured_step = step
        curve = context_curve(
            pl_module.model, self.tokens, self.positions, self.contexts, **self.definition
        )
        if trainer.is_global_zero:
            self._log(trainer, pl_module, curve)
        pl_module.restart_clock()

    def _log(self, trainer: L.Trainer, module: Any, curve: ContextCurve) -> None:
        unit = loss_unit(module.level)
        row: dict[str, Any] = {
            "steps": trainer.global_step,
            "contexts": self.contexts,
            "nll": curve.nll,
            "nll_standard_error": curve.standard_error,
            unit: [loss_metrics(nll, module.level)[unit] for nll in curve.nll],
        }
        row["within_1_percent"] = curve.within_1_percent
        row["recl"] = {}
        values = {
            "tokens": module.tokens,
            "context/within_1_percent": float(row["within_1_percent"]),
        }
        for c, loss in zip(self.contexts, row[unit], strict=True):
            values[f"context/{unit}/{c}"] = loss
        for r, recl in curve.recl.items():
            row["recl"][str(r)] = vars(recl)
            values[f"recl/{r}"] = float(recl.value)
            values[f"recl/{r}/guarded"] = float(recl.guarded)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
            logger.save()
        self.file.append(row)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        rows = [row for row in self.file.rows() if row["contexts"] == self.contexts]
        if not rows:
            return
        from txl_lightning.reporting.canvas import line_figure  # imports matplotlib
        from txl_lightning.reporting.wandb_panels import log_file

        unit = loss_unit(pl_module.level)
        steps = [row["steps"] for row in rows]
        curves = {}
        for i, c in enumerate(self.contexts):
            losses = [row[unit][i] for row in rows]
            curves[f"{c} tokens"] = (steps, losses)
        path = self.file.path.with_suffix(".png")
        line_figure(
            path, curves, "steps", unit_name(pl_module.level), "Loss by context, during training"
        )
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                log_file(logger.experiment, "context_curve", path)


class Progress(Callback):
    """Prints a line on stderr every ten seconds or hundredth of the run, and one for each validation."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._started = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = time.monotonic()
        self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step = trainer.global_step
        if step > self._first_step and self._is_due():
            per_step = (time.monotonic() - self._started) / (step - self._first_step)
            left = timedelta(seconds=round(per_step * (trainer.max_steps - step)))
            words = [f"{step:,}/{trainer.max_steps:,} steps, {left} left"]
            words += _losses(pl_module.latest, "train/")
            if "train/tokens_per_second" in pl_module.latest:
                words.append(f"{pl_module.latest['train/tokens_per_second']:,.0f} tokens/s")
            self._show(trainer, ", ".join(words))

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        split = "test" if trainer.testing else "validation"
        n_segments = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        if self._is_due():
            number = batch[2] + 1
            self._show(trainer, f"{split}: segment {number:,} of {n_segments[0]:,}")

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        when = f"step {trainer.global_step:,}"
        if trainer.state.fn != TrainerFn.FITTING:
            when = "best weights, validation split"
        if not trainer.sanity_checking:
            self._show(trainer, f"{when}: {', '.join(_losses(pl_module.metrics, 'val/'))}")

    def _is_due(self) -> bool:
        now = time.monotonic()
        return now - self._shown >= max(10.0, (now - self._started) / 100)

    def _show(self, trainer: L.Trainer, line: str) -> None:
        self._shown = time.monotonic()
        if trainer.is_global_zero:
            print(line, file=sys.stderr, flush=True)


def _losses(values: dict[str, float], prefix: str) -> list[str]:
    names = [f"{prefix}{unit}" for unit in shown_units(values, prefix)]
    return [f"{name} {values[name]:.3f}" for name in names]
