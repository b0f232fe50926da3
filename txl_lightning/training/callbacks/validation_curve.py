"""Curve of the validation loss, in the logger and in `validation.jsonl`."""

from __future__ import annotations

from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.training.callbacks.training_curves import TrainingCurves
from txl_lightning.training.loggers.curve_file import CurveFile
from txl_lightning.training.loggers.log_metrics import log_metrics
from txl_lightning.training.module import LanguageModelModule


class ValidationCurve(Callback):
    """Writes each validation as a line of `validation.jsonl`: steps, tokens, seconds, nll and bpc or ppl.

    Args:
        path: of the file.
        curves: counts the tokens seen so far and the seconds.
    """

    def __init__(self, path: Path, curves: TrainingCurves) -> None:
        self.file, self.curves = CurveFile(path), curves

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        values = {name: value for name, value in pl_module.metrics.items() if name.startswith("val/")}
        log_metrics(trainer, {**values, "tokens": self.curves.tokens})
        row = {"steps": trainer.global_step, "tokens": self.curves.tokens}
        self.file.append({**row, "seconds": round(self.curves.seconds, 2), **values})

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModelModule)
        values = {name: value for name, value in pl_module.metrics.items() if name.startswith("test/")}
        log_metrics(trainer, {**values, "tokens": self.curves.tokens})
