"""Checkpoints that a run writes: durably, after every n steps and validations, and the best ones."""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from txl_lightning.config.schemas import CheckpointConfig
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import read_checkpoint, read_file, write_checkpoint
from txl_lightning.files import PART, write_atomically

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
BEST = "best.ckpt"


class UnwrittenCheckpointError(UserError):
    """Raised when a checkpoint cannot be written."""


class DurableCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin, with files that are whole or not there, and that can be opened."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
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
            kept = "a checkpoint holds numbers, text, tensors, lists and dictionaries"
            states = ", ".join(checkpoint.get("callbacks", {}))
            raise UserError(
                f"trainer.callbacks: {kept}, not all of the states of {states}"
            ) from error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a checkpoint's contents, without running code stored in it.

        Raises:
            OptionError: it is damaged.
        """
        return read_file(path, "resume")


def who_stopped(trainer: L.Trainer) -> str | None:
    """Return which callback ended a training before its last step, with its reason if it has one; None if none did."""
    if not trainer.should_stop or trainer.global_step >= trainer.max_steps > 0:
        return None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        reason = getattr(callback, "stopping_reason_message", None)
        if reason:
            return f"{type(callback).__name__} ({reason.split(' Signaling')[0]})"
    return "a callback"


def validation_follows(trainer: L.Trainer) -> bool:
    """Return whether Lightning validates after the batch that has just ended (its private methods say so)."""
    is_last_step = 0 < trainer.max_steps <= trainer.global_step
    if trainer.should_stop or is_last_step:
        return True
    data_fetcher: Any = trainer.fit_loop._data_fetcher
    return trainer.fit_loop.epoch_loop._should_check_val_fx(data_fetcher)


class LastCheckpoint(Checkpoint):
    """Saves `last.ckpt` every n steps and after every validation; the one before is `previous.ckpt`.

    If a validation follows a step, the checkpoint follows the validation; otherwise a resumed run would skip it. Stands
    after the other checkpoint callbacks, whose states it saves.

    Args:
        directory: folder for the checkpoints.
        every_n_steps: n.

    Attributes:
        saved_step: the last checkpoint's step; -1 if there is none.
    """

    def __init__(self, directory: Path, every_n_steps: int) -> None:
        self.directory = directory
        self.every_n_steps = every_n_steps
        self.saved_step = -1
        self._is_good = False  # whether last.ckpt is this run's and whole

    @property
    def to_continue(self) -> str:
        """How to continue the run, wherever it was stopped: after its last step no `resume=PATH` is allowed."""
        return f"to continue, repeat the command with hydra.run.dir={self.directory.parent} resume=auto"

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.ckpt_path:
            self.saved_step = trainer.global_step
            self._is_good = Path(trainer.ckpt_path).resolve() == (self.directory / LAST).resolve()
        if trainer.is_global_zero:
            for path in self.directory.glob(f"{PART}*"):  # from a kill in the middle of a write
                path.unlink(missing_ok=True)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step = trainer.global_step
        is_due = step > 0 and step % self.every_n_steps == 0 and step != self.saved_step
        if is_due and not validation_follows(trainer):
            self.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.save(trainer)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Record which callback ended the training."""
        ended_by = who_stopped(trainer)
        if ended_by is not None:
            pl_module.record["ended_by"] = ended_by

    def save(self, trainer: L.Trainer) -> None:
        """Save the state after the last step; all ranks must call this."""
        last = self.directory / LAST
        if trainer.is_global_zero and self._is_good and self.saved_step != trainer.global_step:
            _copy(last, self.directory / PREVIOUS)
        trainer.save_checkpoint(last)
        self._is_good = True
        self.saved_step = trainer.global_step


def _copy(source: Path, target: Path) -> None:
    """Copy a checkpoint within its folder atomically, by a hard link where the file system has them."""
    with suppress(OSError):
        write_atomically(target, lambda temporary: os.link(source, temporary))
        return
    write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))


class RunCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint for a run's folder: fixed file names, no warning about existing ones.

    Args:
        directory: folder for the checkpoints.
        filename: name without suffix; `{step}` is the step.
        options: arguments for ModelCheckpoint.
    """

    def __init__(self, directory: Path, filename: str, **options: Any) -> None:
        super().__init__(
            dirpath=str(directory.absolute()),
            filename=filename,
            auto_insert_metric_name=False,
            enable_version_counter=False,
            **options,
        )

    @property
    def state_key(self) -> str:
        return f"{super().state_key}{self.filename}"

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best values if their files are in this folder, which may have moved; else they begin anew."""
        moved = dict(state_dict)
        moved["dirpath"] = self.dirpath
        for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
            moved[name] = self._in_folder(state_dict[name])
        moved["best_k_models"] = {}
        for path, score in state_dict["best_k_models"].items():
            moved["best_k_models"][self._in_folder(path)] = score
        if Path(moved["best_model_path"]).exists():
            super().load_state_dict(moved)

    def _in_folder(self, path: str) -> str:
        return str(Path(str(self.dirpath), Path(path).name)) if path else ""


def best_checkpoints(directory: Path, options: CheckpointConfig) -> list[ModelCheckpoint]:
    """Return the callbacks that keep the best checkpoints by validation loss, and the weights every n steps.

    `best.ckpt` is the best one, `best-{N}.ckpt` are the `checkpoint.keep_best` best ones, N being the step, and
    `step{N}.ckpt` has the weights after every `checkpoint.keep_every_n_steps`.

    Args:
        directory: folder for the checkpoints.
        options: node `checkpoint`.
    """
    on_validation: dict[str, Any] = {
        "monitor": "val/nll",
        "mode": "min",
        "save_on_train_epoch_end": False,
    }
    callbacks: list[ModelCheckpoint] = [
        RunCheckpoint(directory, "best", save_top_k=1, **on_validation)
    ]
    if options.keep_best:
        callbacks.append(
            RunCheckpoint(directory, "best-{step}", save_top_k=options.keep_best, **on_validation)
        )
    if options.keep_every_n_steps:
        weights: dict[str, Any] = {"save_weights_only": True, "save_top_k": -1}
        every = options.keep_every_n_steps
        callbacks.append(
            RunCheckpoint(directory, "step{step}", every_n_train_steps=every, **weights)
        )
    return callbacks


def last_good(directory: Path) -> tuple[Path | None, list[str]]:
    """Return a run's newest intact checkpoint, and a message for each damaged one.

    Prefers `last.ckpt`; if it is missing or damaged, the later of `previous.ckpt` and `best.ckpt`.
    """
    newest: Path | None = None
    newest_step = -1
    messages: list[str] = []
    for name in (LAST, PREVIOUS, BEST):
        path = directory / name
        if not path.exists() or newest == directory / LAST:
            continue
        try:
            step = read_checkpoint(path).step
        except UserError as error:
            messages.append(str(error).replace("checkpoint=", "", 1))
            continue
        if step > newest_step:
            newest = path
            newest_step = step
    return newest, messages


def is_in_run(directory: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint is in a run's directory, whose curves go on there if it resumes from it."""
    return checkpoint.parent.resolve() == (directory / "checkpoints").resolve()


def remove_later_steps(directory: Path, step: int) -> None:
    """Remove `step{N}.ckpt` and `best-{N}.ckpt` for steps that a run has yet to do."""
    for pattern in ("step", "best-"):
        for path in directory.glob(f"{pattern}*.ckpt"):
            number = path.stem.removeprefix(pattern)
            if number.isdecimal() and int(number) > step:
                path.unlink(missing_ok=True)
