"""Progress of a training run: a bar on stderr, and a file for programs that watch it."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from tqdm import tqdm

from txl_lightning.files import write_json
from txl_lightning.runs.metrics import loss_unit, shown_units
from txl_lightning.training.curves import TrainingCurves
from txl_lightning.training.module import LanguageModelModule


class ProgressBar(LightningProgressBar):
    """Shows steps done, loss, ppl or bpc, bpb, tokens/s and time left: a bar, or ten lines without a terminal."""

    def __init__(self, curves: TrainingCurves) -> None:
        super().__init__()
        self.curves = curves
        self._enabled = True
        self._bar: tqdm | None = None

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._enabled:
            on_terminal = sys.stderr.isatty()
            self._bar = tqdm(
                total=int(trainer.max_steps),
                initial=trainer.global_step,
                unit="step",
                file=sys.stderr if on_terminal else _Lines(sys.stderr),
                dynamic_ncols=on_terminal,
                mininterval=0.5 if on_terminal else 0.0,
                maxinterval=10.0 if on_terminal else math.inf,
                miniters=1 if on_terminal else math.ceil(trainer.max_steps / 10),
            )
            use_monotonic_clock(self._bar)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None:
            assert isinstance(pl_module, LanguageModelModule)
            self._bar.set_postfix_str(self._text(pl_module.metrics), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        # Otherwise the error would begin in the middle of the bar's line.
        self.on_train_end(trainer, pl_module)

    def _text(self, metrics: dict[str, float]) -> str:
        latest = self.curves.latest
        shown = [f"{name} {latest['train/' + name]:.3f}" for name in ("nll", "bpc", "ppl") if "train/" + name in latest]
        shown += [f"val/{unit} {metrics[f'val/{unit}']:.3f}" for unit in shown_units(metrics, "val/")]
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return ", ".join(shown)


def use_monotonic_clock(bar: tqdm) -> None:
    """Let a bar measure time with a clock that never jumps (a private attribute of tqdm, which reads the wall clock).

    A wall clock that is set back would stop the bar and make its rate and time left negative.
    """
    bar._time = time.monotonic
    bar.start_t = bar.last_print_t = bar._time()


class _Lines:
    """Stream for tqdm that writes each state of the bar on a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        text = text.strip()
        if text:
            self.stream.write(text + "\n")

    def flush(self) -> None:
        self.stream.flush()


PROGRESS_FILE = "progress.json"
EVERY_SECONDS = 1.0


class ProgressFile(Callback):
    """Writes `progress.json`, replaced atomically at most once a second (`trainer.progress_file=true`).

    The file holds `steps`, `max_steps`, `unit` (bpc or ppl), `loss` (training loss at the last log step, in that
    unit; null before the first) and `seconds` (wall-clock time of the run, earlier sessions included).

    Args:
        directory: run directory.
        curves: source of the loss and the time.
    """

    def __init__(self, directory: Path, curves: TrainingCurves) -> None:
        self.path, self.curves = directory / PROGRESS_FILE, curves
        self._last_write = -EVERY_SECONDS

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._last_write >= EVERY_SECONDS:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._last_write = time.monotonic()
        unit = loss_unit(str(module.level))
        state = {"steps": trainer.global_step, "max_steps": trainer.max_steps, "unit": unit}
        state |= {"loss": self.curves.latest.get(f"train/{unit}"), "seconds": round(self.curves.seconds, 2)}
        try:
            write_json(self.path, state)
        except OSError as error:  # a full disk must not end the training
            print(f"could not write {self.path.name}: {error}; training continues", file=sys.stderr, flush=True)
