"""Checkpointing: random states, record and weights of a run, its last state, the one before, and the best."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from txl_lightning.data.streams import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import UserError
from txl_lightning.runs.storage import DurableCheckpoints, copy_checkpoint, write_checkpoint
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.module import LanguageModelModule


class RandomState(Callback):
    """Saves and restores every rank's random state, so that a resumed run draws the same dropout masks.

    If more ranks resume than wrote the checkpoint, the additional ones get a new seed. Such a run is bit-equal to
    an uninterrupted one only without dropout.

    Args:
        ranks: the processes of the run.
        seed: seed of the run; additional ranks derive theirs from it.
    """

    def __init__(self, ranks: Ranks, seed: int) -> None:
        self.ranks, self.seed = ranks, seed
        self._loaded: list[dict[str, Any]] | None = None

    @property
    def state_key(self) -> str:
        return "RandomState"

    @staticmethod
    def current() -> dict[str, Any]:
        """Return the states of torch (CPU and this process's GPU), NumPy and Python in plain containers."""
        name, keys, *rest = np.random.get_state(legacy=True)
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
            "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
            "python": random.getstate(),
        }

    @staticmethod
    def set(state: dict[str, Any]) -> None:
        """Restore a state that `current` returned."""
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        if state.get("mps") is not None and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self.ranks.gather(self.current())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the state here, after everything that draws random numbers before the first step."""
        if self._loaded is None:
            return
        if self.ranks.rank < len(self._loaded):
            self.set(self._loaded[self.ranks.rank])
        else:
            L.seed_everything(self.ranks.seed(self.seed, trainer.global_step), verbose=False)


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


class StepBoundary:
    """State after a completed step, to undo an unfinished one.

    Memory, streams, random state and Lightning's counters change during a step. Weights and optimizer change at
    its very end only, so they need no copy; the memory is an immutable value and needs none either.
    """

    def __init__(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        self.trainer, self.module = trainer, module
        self.carried = (module.training_memory.memory, module.training_memory.next_number)
        self.random = RandomState.current()
        self.streams = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]

    def restore(self) -> None:
        """Undo the unfinished step."""
        self.module.training_memory.memory, self.module.training_memory.next_number = self.carried
        RandomState.set(self.random)
        self.trainer.train_dataloader.load_state_dict(self.streams)  # type: ignore[union-attr]
        discard_unfinished_batch(self.trainer)


def discard_unfinished_batch(trainer: L.Trainer) -> None:
    """Reset the fit loop's counters (private in Lightning) to the last completed batch, as a resumed run does."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for counters in (progress.total, progress.current):
        counters.reset_on_restart()


LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class Checkpoints(Callback):
    """Writes the last state of the run, keeps the one before, and the best by validation loss.

    `last.ckpt` is written every n steps, after every validation, when the run is stopped and at its end.
    `previous.ckpt` is the `last.ckpt` before it, `best.ckpt` a copy of the one with the lowest validation loss. If
    a validation is due after a step, the checkpoint follows it; otherwise a resumed run would skip that
    validation. On an exception a single process saves the state after the last completed step. With several ranks
    nothing is saved then, because the other ranks wait in a collective. A failed write is reported and training
    continues.

    Args:
        directory: folder of the checkpoints.
        every_n_steps: n.
        val_every_n_steps: interval of validation; None for the end of every epoch. The last step is validated too.
        ranks: the processes of the run.
        resumed_from: the checkpoint that the run continues; its best checkpoint is next to it.
        step: number of steps in that checkpoint.
        best_counts: the losses of its validations can be compared with those of this run. Otherwise the next
            validation is the best.

    Attributes:
        best: nll and step of the best validation so far.
        saved_step: step of the last checkpoint; -1 if there is none.
    """

    def __init__(
        self,
        directory: Path,
        every_n_steps: int,
        val_every_n_steps: int | None,
        ranks: Ranks,
        resumed_from: Path | None,
        step: int,
        best_counts: bool = True,
    ) -> None:
        self.best_counts = best_counts
        self.directory, self.ranks, self.resumed_from = directory, ranks, resumed_from
        self.every_n_steps, self.val_every_n_steps = every_n_steps, val_every_n_steps
        self.best: dict[str, float] = {"nll": math.inf, "step": -1}
        self.saved_step = -1 if resumed_from is None else step
        self.continues_here = resumed_from is not None and resumed_from.parent.resolve() == directory.resolve()
        self.last_is_good = self.continues_here and resumed_from is not None and resumed_from.name == LAST
        self.stale: tuple[str, ...] = ()  # files of an earlier run in this directory, removed by the first save
        self.boundary: StepBoundary | None = None

    @property
    def state_key(self) -> str:
        return "Checkpoints"

    @property
    def last(self) -> Path:
        """Path of the last checkpoint."""
        return self.directory / LAST

    @property
    def newest(self) -> Path | None:
        """The checkpoint of `saved_step`: the last one, or before the first save here the one that was resumed."""
        return self.last if self.last_is_good else self.resumed_from

    @property
    def best_path(self) -> Path | None:
        """Path of the best checkpoint; None before the first validation."""
        return self.directory / BEST if math.isfinite(self.best["nll"]) else None

    @property
    def best_step(self) -> int:
        """Step of the best checkpoint; -1 before the first validation."""
        return int(self.best["step"])

    def save(self, trainer: L.Trainer) -> bool:
        """Write `last.ckpt`; all ranks must call this. Return whether it was written.

        A damaged `last.ckpt`, or one of an earlier run in this directory, does not become `previous.ckpt`.
        """
        step = trainer.global_step
        keep_previous = self.last_is_good and self.saved_step != step
        options = {"previous": self.directory / PREVIOUS} if keep_previous else None
        trainer.save_checkpoint(self.last, storage_options=options)
        io = trainer.strategy.checkpoint_io
        assert isinstance(io, DurableCheckpoints)
        error = self.ranks.first(io.error and str(io.error))
        if error is None:
            if self.ranks.rank == 0:
                for name in self.stale:
                    (self.directory / name).unlink(missing_ok=True)
            self.saved_step, self.last_is_good, self.stale = step, True, ()
        elif self.ranks.rank == 0:
            last = f"the last one is of step {self.saved_step}" if self.saved_step >= 0 else "there is none yet"
            then = "; training continues" if trainer.training else ""
            message = f"could not write the checkpoint of step {step}: {error}; {last}{then}"
            print(message, file=sys.stderr, flush=True)
        return error is None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copy the best checkpoint of a resumed run here; mark checkpoints of an earlier run for removal."""
        if self.ranks.rank == 0:
            for part in self.directory.glob(".*.part"):
                part.unlink(missing_ok=True)
        if self.best["step"] >= 0 and not self.ranks.first(self.ranks.rank == 0 and self._find_best()):
            self.best = {"nll": math.inf, "step": -1}
        if not self.continues_here:
            self.stale = (PREVIOUS,) if self.best["step"] >= 0 else (PREVIOUS, BEST)

    def _find_best(self) -> bool:
        assert self.resumed_from is not None
        for path in (self.resumed_from.with_name(BEST), self.resumed_from):
            try:
                found = read_checkpoint(path)
            except UserError:
                continue
            record = found.get("callbacks", {}).get(self.state_key, {}).get("best")
            if record == self.best and found["global_step"] == self.best["step"]:
                return path.resolve() == (self.directory / BEST).resolve() or self._copy_best(path)
        return False

    def validation_is_due(self, trainer: L.Trainer) -> bool:
        """Return whether a validation follows the step that has just ended."""
        every, step = self.val_every_n_steps, trainer.global_step
        return step >= trainer.max_steps or (trainer.is_last_batch if every is None else step % every == 0)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every_n_steps == 0 and not self.validation_is_due(trainer):
            self.save(trainer)
        assert isinstance(pl_module, LanguageModelModule)
        self.boundary = StepBoundary(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, LanguageModelModule)
        before, nll = (self.best, self.best_counts), pl_module.metrics["val/nll"]
        if nll < self.best["nll"] or (math.isfinite(nll) and not self.best_counts):
            self.best, self.best_counts = {"nll": nll, "step": trainer.global_step}, True
        kept = self.save(trainer)
        if kept and self.best is not before[0]:
            kept = self.ranks.first(self.ranks.rank == 0 and self._copy_best(self.last))
        if not kept:
            self.best, self.best_counts = before

    def _copy_best(self, source: Path) -> bool:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            copy_checkpoint(source, self.directory / BEST)
        except OSError as error:
            print(f"could not write {BEST}: {error}; the previous one stays", file=sys.stderr, flush=True)
            return False
        return True

    def on_before_optimizer_step(self, trainer: L.Trainer, *args: Any) -> None:
        self.boundary = None  # from here to the end of the step, weights and counters do not match

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save the state after the last completed step, unless the run was stopped on purpose."""
        stopped = isinstance(exception, (UserError, KeyboardInterrupt))
        if stopped or self.boundary is None or self.ranks.world_size > 1 or trainer.global_step == self.saved_step:
            return
        if trainer.state.stage == RunningStage.VALIDATING:
            return
        self.boundary.restore()
        self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_counts": self.best_counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.best_counts = self.best_counts and state_dict.get("best_counts", True)
