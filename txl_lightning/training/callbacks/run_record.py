"""Record of the run in its checkpoints."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback


class RunRecord(Callback):
    """Adds config and vocabulary to every checkpoint, so that its file alone is enough to use the model.

    Args:
        record: `config`, `vocabulary`, `corpus` (its checksum) and `wandb_id` (None without W&B). Plain containers
            only, so that loading a checkpoint runs no code.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["txl_lightning"] = self.record
