"""Record of the run in its checkpoints, and its weights after every n steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.storage import write_checkpoint


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


class StepWeights(Callback):
    """Writes `step{N}.ckpt` every n steps: weights, config and vocabulary, enough for every evaluation.

    A run cannot resume from them. Those of an earlier run in this directory, or of steps that a resumed run has yet
    to do, are removed at its start. A failed write is reported and training continues.

    Args:
        directory: folder of the checkpoints.
        every_n_steps: n; None for never.
        record: config and vocabulary, as in every checkpoint of the run.
        ranks: the processes of the run.
        step: steps done before this process; 0 for a new run.
    """

    def __init__(
        self, directory: Path, every_n_steps: int | None, record: dict[str, Any], ranks: Ranks, step: int
    ) -> None:
        self.directory, self.every_n_steps, self.record = directory, every_n_steps, record
        self.ranks, self.step = ranks, step

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for path in self.directory.glob("step*.ckpt") if self.ranks.rank == 0 else ():
            number = path.stem.removeprefix("step")
            if number.isdecimal() and int(number) > self.step:
                path.unlink(missing_ok=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if self.every_n_steps is None or step % self.every_n_steps or self.ranks.rank:
            return
        contents = {"state_dict": pl_module.state_dict(), "global_step": step, "txl_lightning": self.record}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_checkpoint(contents, self.directory / f"step{step}.ckpt")
        except OSError as error:
            print(f"could not write step{step}.ckpt: {error}; training continues", file=sys.stderr, flush=True)
