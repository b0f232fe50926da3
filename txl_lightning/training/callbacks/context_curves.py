"""Loss by context length and RECL of the model during training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback

from txl_lightning.config.schemas import ContextCurveConfig
from txl_lightning.data.streams import Segment
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.recl.effective_context import check_definition
from txl_lightning.evaluation.recl.loss_by_context import ContextCurve, context_curve
from txl_lightning.evaluation.scoring.position_blocks import position_blocks
from txl_lightning.runs.metrics import loss_metrics, loss_unit
from txl_lightning.training.callbacks.training_curves import TrainingCurves
from txl_lightning.training.loggers.curve_file import CurveFile
from txl_lightning.training.loggers.log_metrics import log_metrics
from txl_lightning.training.loggers.wandb_history import RepeatableWandbLogger
from txl_lightning.training.module import LanguageModelModule

RECL_THRESHOLD = 0.01  # of appendix C


class ContextCurves(Callback):
    """Scores fixed positions of the validation split with exactly c tokens of context, for several c.

    Logs `context/{bpc or ppl}/{c}` and `recl/{r}` over steps, and to W&B each measurement as a curve over c too.
    RECL is that of a group with this model alone (appendix C); in a larger group it may differ. Every rank scores
    its share of the windows. Memory, streams and random state of the training stay unchanged.

    Args:
        options: interval, contexts and number of positions.
        tokens: the validation split.
        trained_len: tokens that absolute positions were trained with.
        clamp_len: larger distances share one position; None for the model's own.
        path: file that gets one line per measurement.
        curves: counts the tokens seen so far; the time of a measurement is excluded from its tokens/s.

    Raises:
        OptionError: an option is not possible with this split.
    """

    def __init__(
        self,
        options: ContextCurveConfig,
        tokens: np.ndarray,
        trained_len: int,
        clamp_len: int | None,
        path: Path,
        curves: TrainingCurves,
    ) -> None:
        self.curves, self.options, self.tokens = curves, options, tokens
        self.trained_len, self.clamp_len = trained_len, clamp_len
        try:
            for name in ("every_n_steps", "first_context", "step"):
                value = getattr(options, name)
                require(value is None or value >= 1, name, value, "must be an integer >= 1")
            self.contexts = list(range(options.first_context, options.max_context + 1, options.step))
            check_definition(self.contexts, options.fractions, RECL_THRESHOLD, bootstrap=0)
            self.positions, self.blocks = position_blocks(len(tokens), options.n_positions, self.contexts)
        except OptionError as error:
            raise error.within("context_curve") from error
        self.file = CurveFile(path)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        every = self.options.every_n_steps
        if every is None or trainer.global_step % every:
            return
        assert isinstance(pl_module, LanguageModelModule)
        curve = context_curve(
            pl_module.model,
            self.tokens,
            self.positions,
            self.contexts,
            trained_len=self.trained_len,
            clamp_len=self.clamp_len,
            blocks=self.blocks,
            fractions=self.options.fractions,
            threshold=RECL_THRESHOLD,
            bootstrap=0,
        )
        if trainer.is_global_zero:
            self._log(trainer, pl_module, curve)
        self.curves.restart_clock()

    def _log(self, trainer: L.Trainer, pl_module: LanguageModelModule, curve: ContextCurve) -> None:
        unit = loss_unit(pl_module.level)
        values = [loss_metrics(nll, pl_module.level)[unit] for nll in curve.nll]
        scalars = {f"context/{unit}/{c}": value for c, value in zip(self.contexts, values, strict=True)}
        recl = {str(r): {"value": found.value, "at_least": found.at_least} for r, found in curve.recl.items()}
        scalars |= {f"recl/{r}": float(found["value"]) for r, found in recl.items()}
        log_metrics(trainer, {**scalars, "tokens": self.curves.tokens})
        for logger in trainer.loggers:
            if isinstance(logger, RepeatableWandbLogger):
                curves, title = {unit: values}, "Validation loss by context"
                logger.log_series("context/curve", self.contexts, curves, "context", title, trainer.global_step)
        row = {"steps": trainer.global_step, "contexts": self.contexts, "nll": curve.nll}
        self.file.append({**row, "standard_error": curve.standard_error, unit: values, "recl": recl})
