"""Private parts of Lightning that training needs, one function each; `tests/training/test_internals.py` pins them."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Keep Lightning from installing signal handlers: they communicate with other ranks from inside the signal."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def discard_unfinished_batch(trainer: L.Trainer) -> None:
    """Reset the fit loop's counters to the last completed batch, as a resumed run does."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for counters in (progress.total, progress.current):
        counters.reset_on_restart()


def set_csv_rows(logger: CSVLogger, rows: list[dict[str, Any]]) -> None:
    """Let `metrics.csv` begin with these rows; Lightning starts an empty file."""
    logger.experiment.metrics = rows
    logger.save()
