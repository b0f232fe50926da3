"""Progress of a training as a file, for programs that watch it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from txl_lightning.files import write_json
from txl_lightning.runs.metrics import loss_unit
from txl_lightning.training.callbacks.training_curves import TrainingCurves

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
