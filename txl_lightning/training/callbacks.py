"""Callbacks of a run: signals, the curve of validations, curves of losses by context, progress on the terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import Config
from txl_lightning.distributed.processes import handled_signals
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, Stopped, notice
from txl_lightning.files import append_text, write_text
from txl_lightning.recl.loss_by_context import ContextCurve, context_curve
from txl_lightning.recl.positions import position_blocks
from txl_lightning.runs.metrics import loss_metrics, loss_unit, shown_units, unit_name
from txl_lightning.training.checkpoints import LastCheckpoint, validation_follows


class SignalError(BaseException):
    """Raised by a signal handler, wherever the run is: code that handles a bad file's errors must not see it."""


class StopSignals(Checkpoint):
    """Ends the run at SIGTERM, SIGINT, SIGHUP or SIGUSR1 inside its `with` block, which then raises `Stopped`.

    While steps are trained a signal is only noted; after the step the state is saved and the run stops. It may reach
    the ranks at different times: they agree in every step, so that all of them save the same one. A validation due at
    that step runs first, as it would without the signal. Before and after training there is nothing to save and the run
    stops at once, as it does at a second Ctrl-C.

    It is a checkpoint callback because Lightning calls those last.

    Args:
        ranks: the processes of the run.

    Attributes:
        checkpoint: saves the state; None if checkpoints are disabled.
        signum: first signal received; 0 without one.
        agreed: signal that the ranks have agreed on; 0 without one.
        training: whether steps are being trained; None before.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoint: LastCheckpoint | None = None
        self.signum = 0
        self.agreed = 0
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
        is_again = signum == self.signum == signal.SIGINT
        now = time.monotonic()
        if is_again and now - self._received_at < 1.0:  # one Ctrl-C, from the terminal and from the parent
            return
        self.signum = self.signum or signum
        self._received_at = now
        if is_again or not self.training:
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
        if self.agreed and not trainer.fit_loop._should_accumulate() and not validation_follows(trainer):
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
        raise Stopped(f"stopped by {name} after step {trainer.global_step}{self._to_continue()}", self.agreed)

    def _to_continue(self) -> str:
        checkpoint = self.checkpoint
        if checkpoint is None or self.training is None or checkpoint.saved_step < 0:
            return ""
        return f"; {checkpoint.to_continue}"


def requeue(config: Config) -> None:
    """Put this process's job of SLURM back into its queue, and say whether it worked; nothing without SLURM.

    SLURM then starts the same command again, which must continue: `resume=auto`, with checkpoints.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or os.environ.get("SLURM_PROCID", "0") != "0":
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


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Report a failed write on stderr instead of ending the training."""
    try:
        yield
    except OSError as error:
        print(f"could not write {what}: {error}; training continues", file=sys.stderr, flush=True)


class CurveFile:
    """Lines of JSON, each with the number of `steps` after which it was measured.

    A failed write is reported on stderr and does not end the training; the next one repeats it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten = ""

    def append(self, row: dict[str, Any]) -> None:
        """Append one whole line, after those for which the disk was full."""
        self.unwritten += f"{json.dumps(row)}\n"
        with reported(self.path.name):
            append_text(self.path, self.unwritten)
            self.unwritten = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, but for a last one that a kill or a full disk has cut short."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8", "replace").split("\n")
        rows = []
        for line in lines[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:
                notice(f"{self.path}: a line is no JSON; a resumed run removes it")
        return rows

    def keep_until(self, step: int) -> None:
        """Remove the rows of steps that a resumed run does again."""
        kept = [row for row in self.rows() if row["steps"] <= step]
        text = "".join(f"{json.dumps(row)}\n" for row in kept)
        if self.path.exists() and self.path.read_text("utf-8", "replace") != text:
            write_text(self.path, text)


class ValidationCurve(Callback):
    """Writes a line of `validation.jsonl` for each validation: steps, tokens, seconds, nll, and ppl, bpc or bpb.

    Args:
        directory: run directory.

    Attributes:
        file: the curve.
    """

    def __init__(self, directory: Path | str) -> None:
        self.file = CurveFile(Path(directory) / "validation.jsonl")
        self._seconds_before = 0.0
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock time of this run, including earlier sessions up to their last checkpoint."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = time.perf_counter()
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking or not trainer.is_global_zero:
            return
        row = {"steps": trainer.global_step, "tokens": pl_module.tokens, "seconds": round(self.seconds, 2)}
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
RECL_THRESHOLD = 0.01  # of appendix C


class ContextCurves(Callback):
    """Scores fixed positions of the validation split with exactly c tokens of context, for several c.

    Logs `context/{unit}/{c}`, `context/doublings/{c}` (bits from c to 2c), `context/within_1_percent`, `recl/{r}`
    and `recl/{r}/guarded` over steps, in the words of `recl.json`. When training ends, `context_curve.png` shows the
    losses over steps.
    RECL is that of a group with this model alone (appendix C); in a larger group it may differ. Every rank scores
    its share of the windows. Memory, streams and random state of the training stay unchanged. The time of a measurement
    is excluded from tokens/s.

    Args:
        config: its `context_curve`, and the lengths of training.
        tokens: the validation split.
        directory: run directory, for `context_curve.jsonl`.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(self, config: Config, tokens: np.ndarray, directory: Path) -> None:
        options = config.context_curve
        self.file = CurveFile(directory / "context_curve.jsonl")
        self.every_n_steps = options.every_n_steps or sys.maxsize
        self.tokens = tokens
        step = options.max_context // N_CONTEXTS
        self.contexts = [step * (i + 1) for i in range(N_CONTEXTS)]
        n_positions = max(1, min(N_POSITIONS, len(tokens) - options.max_context))
        try:
            self.positions, blocks = position_blocks(len(tokens), n_positions, self.contexts)
        except OptionError as error:
            raise OptionError("context_curve.max_context", options.max_context, error.allowed) from error
        self.definition: dict[str, Any] = {
            "blocks": blocks,
            # Absolute positions reach as far as those of training; larger distances share one.
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
        curve = context_curve(pl_module.model, self.tokens, self.positions, self.contexts, **self.definition)
        if trainer.is_global_zero:
            self._log(trainer, pl_module, curve)
        pl_module.restart_clock()

    def _log(self, trainer: L.Trainer, module: Any, curve: ContextCurve) -> None:
        unit = loss_unit(module.level)
        losses = [loss_metrics(nll, module.level)[unit] for nll in curve.nll]
        row: dict[str, Any] = {
            "steps": trainer.global_step,
            "contexts": self.contexts,
            "nll": curve.nll,
            "nll_standard_error": curve.standard_error,
            unit: losses,
            **curve.gains,
            "recl": {str(r): vars(recl) for r, recl in curve.recl.items()},
        }
        values = {"tokens": module.tokens, "context/within_1_percent": float(row["within_1_percent"])}
        for c, loss in zip(self.contexts, losses, strict=True):
            values[f"context/{unit}/{c}"] = loss
        for doubling in row["doublings"]:
            values[f"context/doublings/{doubling['from']}"] = doubling["bits"]
        for r, recl in curve.recl.items():
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

        level = pl_module.level
        unit = loss_unit(level)
        steps = [row["steps"] for row in rows]
        curves = {}
        for i, c in enumerate(self.contexts):
            losses = [loss_metrics(row["nll"][i], level)[unit] for row in rows]
            curves[f"{c} tokens"] = (steps, losses)
        path = self.file.path.with_suffix(".png")
        with reported(path.name):
            line_figure(path, curves, "steps", unit_name(level), "Loss by context, during training")
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    log_file(logger.experiment, "context_curve", path)


class RunProgress(ProgressBar):
    """Shows steps, time left, loss, the last validation and tokens/s on one line that fits the terminal.

    Validation and test are shown too; after each validation one line stays. Without a terminal, and on one that cannot
    go back to the start of a line (TERM=dumb), training is a new line for every tenth of the steps, and after five
    minutes without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rewrites = False
        self._is_open = False  # whether a rewritten line is the last one
        self._is_enabled = True
        self._shown = 0.0
        self._started = 0.0
        self._first = 0
        self._tenth = 0

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._rewrites = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def disable(self) -> None:
        """Show nothing: Lightning calls this on all ranks but the first."""
        self._is_enabled = False

    def enable(self) -> None:
        """Show progress again."""
        self._is_enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._started = time.monotonic()
        self._shown = self._started
        self._first = trainer.global_step
        self._tenth = self._tenth_of(trainer)

    def _tenth_of(self, trainer: L.Trainer) -> int:
        return trainer.global_step * 10 // trainer.max_steps

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step = trainer.global_step
        is_last = step == trainer.max_steps
        tenth = self._tenth_of(trainer)
        is_new_tenth = not self._rewrites and tenth != self._tenth
        if step > self._first and (is_new_tenth or self._is_due(0.5 if self._rewrites else 300) or is_last):
            self._tenth = tenth
            seconds = (time.monotonic() - self._started) / (step - self._first) * (trainer.max_steps - step)
            left = f"{timedelta(seconds=round(seconds))} left"
            self._show(f"{step:,}/{trainer.max_steps:,} steps", left, *self._values(pl_module))

    def _is_due(self, seconds: float) -> bool:
        return time.monotonic() - self._shown >= seconds

    def _values(self, module: Any) -> list[str]:
        latest = module.latest
        metrics = module.metrics
        validated = [f"val/{unit}" for unit in shown_units(metrics, "val/")]
        shown = [f"{unit} {latest[f'train/{unit}']:.3f}" for unit in shown_units(latest, "train/")[:1]]
        shown += [f"{name} {metrics[name]:.3f}" for name in validated[:1]]
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return shown + [f"{name} {metrics[name]:.3f}" for name in validated[1:]]

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.has_dataloader_changed(dataloader_idx)  # Lightning counts batches of this loader
        self._show_segment("validation", batch_idx, self.total_val_batches_current_dataloader)

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.has_dataloader_changed(dataloader_idx)  # Lightning counts batches of this loader
        self._show_segment("test", batch_idx, self.total_test_batches_current_dataloader)

    def _show_segment(self, what: str, index: int, total: float) -> None:
        if self._is_due(0.5 if self._rewrites else 60):
            self._show(f"{what}: {index + 1:,}/{total:,} segments")

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        metrics = pl_module.metrics
        losses = [f"val/{unit} {metrics[f'val/{unit}']:.3f}" for unit in ("nll", *shown_units(metrics, "val/"))]
        when = f"step {trainer.global_step:,}"
        if trainer.state.fn != TrainerFn.FITTING:
            when = f"best weights, {metrics['val/tokens']:,} tokens"
        self._show(f"{when}: {', '.join(losses)}")
        self._close()

    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._close()

    def _show(self, *parts: str) -> None:
        if not self._is_enabled:
            return
        width = get_terminal_size().columns - 1
        while len(", ".join(parts)) > width and len(parts) > 1:
            parts = parts[:-1]
        line = ", ".join(parts)
        sys.stderr.write(f"\r{line:<{width}}" if self._rewrites else f"{line}\n")
        sys.stderr.flush()
        self._is_open = self._rewrites
        self._shown = time.monotonic()

    def _close(self) -> None:
        """End a rewritten line, which stays."""
        if self._is_open:
            sys.stderr.write("\n")
            self._is_open = False

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._close()  # otherwise the error would begin in the middle of the line
