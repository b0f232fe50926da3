"""Checkpoints that a run writes: durably, after every n steps and validations, and the best one."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.schemas import CheckpointConfig
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import read_file, write_checkpoint
from txl_lightning.files import PART
from txl_lightning.training import Values, version_0_5

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
BEST = "best.ckpt"
NO_STATE = "holds weights only"


class UnwrittenCheckpointError(UserError):
    """Raised when a checkpoint cannot be written."""

    advice = "with space again repeat the command with hydra.run.dir={directory} resume=auto"


class DurableCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin, with files that are whole or not there, and that can be opened."""

    def save_checkpoint(
        self, checkpoint: Values, path: Any, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint on the first rank; after an error the files that were there are whole.

        Raises:
            UnwrittenCheckpointError: the disk is full or the folder is not writable.
            UserError: a callback's state could not be read again.
        """
        target = Path(path)
        step = checkpoint["global_step"]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(checkpoint, target)
        except OSError as error:
            raise UnwrittenCheckpointError(
                f"could not write the checkpoint of step {step}: {error}"
            ) from error
        except pickle.UnpicklingError as error:
            raise UserError(
                "callbacks: the state of one holds more than numbers, text, tensors, lists "
                "and dictionaries, so that a checkpoint could not be read again"
            ) from error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a checkpoint's contents, without running code stored in it.

        Raises:
            OptionError: it is damaged.
        """
        checkpoint = read_file(path, "resume")
        if version_0_5.is_version_0_5(checkpoint):
            version_0_5.convert(checkpoint, Path(path).parent.parent)
        return checkpoint


def who_stopped(trainer: Trainer) -> str | None:
    """Return which callback ended a training before its last step, with its reason if it has one; None if none did."""
    if not trainer.should_stop or trainer.global_step >= trainer.max_steps > 0:
        return None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        reason = getattr(callback, "stopping_reason_message", None)
        if reason:
            reason = reason.split(" Signaling")[0]
            return f"{type(callback).__name__} ({reason})"
    return "a callback"


def validation_follows(trainer: Trainer) -> bool:
    """Return whether Lightning validates after the batch that has just ended (its private methods say so)."""
    is_last_step = 0 < trainer.max_steps <= trainer.global_step
    if trainer.should_stop or is_last_step:
        return True
    data_fetcher: Any = trainer.fit_loop._data_fetcher
    return trainer.fit_loop.epoch_loop._should_check_val_fx(data_fetcher)


class RunCheckpoint(Checkpoint):
    """Saves `last.ckpt` every n steps and after every validation, `best.ckpt` after one with the lowest loss so far.

    The `last.ckpt` before becomes `previous.ckpt`, in case a disk damages the new one.

    If a validation follows a step, the checkpoint follows the validation; otherwise a resumed run would skip it. Stands
    after the other checkpoint callbacks, whose states it saves.

    It is no subclass of Lightning's ModelCheckpoint, which saves either every n steps or after validations, and before
    a validation that is due at the same step: all its hooks would be replaced. ModelCheckpoint itself keeps the
    weights of every n steps (`callbacks=keep_weights`).

    Args:
        directory: folder for the checkpoints.
        options: node `checkpoint`.

    Attributes:
        saved_step: the last checkpoint's step; -1 if there is none.
        best_nll: validation loss of `best.ckpt`.
    """

    def __init__(self, directory: Path, options: CheckpointConfig) -> None:
        self.directory = directory
        self.options = options
        self.saved_step = -1
        self.best_nll = math.inf
        self._is_whole = False  # last.ckpt was written or read by this session

    @property
    def to_continue(self) -> str:
        """How to continue the run, wherever it was stopped: after its last step no `resume=PATH` is allowed."""
        return f"to continue, repeat the command with hydra.run.dir={self.directory.parent} resume=auto"

    def state_dict(self) -> Values:
        return {"best_nll": self.best_nll}

    def load_state_dict(self, state_dict: Values) -> None:
        """Restore the lowest loss, unless the run goes on in another folder, without its `best.ckpt`."""
        if (self.directory / BEST).exists():
            self.best_nll = state_dict["best_nll"]

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.ckpt_path:
            self.saved_step = trainer.global_step
            last = self.directory / LAST
            self._is_whole = Path(trainer.ckpt_path).resolve() == last.resolve()
        if trainer.is_global_zero:
            for path in self.directory.glob(f"{PART}*"):  # from a kill in the middle of a write
                path.unlink(missing_ok=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *batch: Any) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        step = trainer.global_step
        if step % self.options.every_n_steps == 0 and not validation_follows(trainer):
            self.save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        nll = pl_module.metrics["val/nll"]
        if nll < self.best_nll:
            self.best_nll = nll
            trainer.save_checkpoint(self.directory / BEST)
        self.save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Values) -> None:
        """Record which callback ended the training."""
        ended_by = who_stopped(trainer)
        if ended_by is not None:
            pl_module.record["ended_by"] = ended_by

    def save(self, trainer: Trainer) -> None:
        """Save the state after the last step; all ranks must call this."""
        last = self.directory / LAST
        if trainer.is_global_zero and self._is_whole:
            last.replace(self.directory / PREVIOUS)
        trainer.save_checkpoint(last)
        self._is_whole = True
        self.saved_step = trainer.global_step


def is_in_run(directory: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint is in a run's directory, whose curves go on there if it resumes from it."""
    return checkpoint.parent.resolve() == (directory / "checkpoints").resolve()
