"""When a run writes which checkpoint, and which one a later run goes on from."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from txl_lightning.data.streams.ordered import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import UserError
from txl_lightning.runs.storage import DurableCheckpoints, copy_checkpoint
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.callbacks.random_state import RandomState
from txl_lightning.training.module import LanguageModelModule

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class Checkpoints(Callback):
    """Keeps the last state, the one before, and the best by validation loss.

    `last.ckpt` is written every n steps, after every validation, when the run is stopped and at its end;
    `previous.ckpt` is what it was before, `best.ckpt` a copy from when the validation loss was lowest. A step
    whose validation is due is saved after it, never before: who goes on from there would leave it out. An
    exception in a process that runs alone writes the state after the last whole step; among several ranks the
    others wait elsewhere, and the last checkpoint stands. A disk that refuses is reported, and training goes on.

    Args:
        directory: of the files.
        every_n_steps: n.
        val_every_n_steps: validation in mid-epoch; None at its end.
        ranks: the processes of the run.
        resumed_from: the checkpoint that the run continues, to find its best one.
        step: after which that was written.

    Attributes:
        best: nll and step of the best validation so far.
    """

    def __init__(
        self,
        directory: Path,
        every_n_steps: int,
        val_every_n_steps: int | None,
        ranks: Ranks,
        resumed_from: Path | None,
        step: int,
    ) -> None:
        self.directory, self.ranks, self.resumed_from = directory, ranks, resumed_from
        self.every_n_steps, self.val_every_n_steps = every_n_steps, val_every_n_steps
        self.best: dict[str, float] = {"nll": math.inf, "step": -1}
        self.saved_step = -1 if resumed_from is None else step
        self.is_at_home = resumed_from is not None and resumed_from.parent.resolve() == directory.resolve()
        self.last_is_good = self.is_at_home and resumed_from is not None and resumed_from.name == LAST
        self.stale: tuple[str, ...] = ()
        self.boundary: StepBoundary | None = None

    @property
    def last(self) -> Path:
        """Where the last state is."""
        return self.directory / LAST

    @property
    def best_path(self) -> Path | None:
        """The best checkpoint, if there was a validation."""
        return self.directory / BEST if math.isfinite(self.best["nll"]) else None

    def save(self, trainer: L.Trainer) -> bool:
        """Write the current state as the last one, on all ranks together; whether it could be written.

        A damaged last one, or one of an earlier run in this directory, never becomes the previous one.
        """
        step = trainer.global_step
        keeps = self.last_is_good and self.saved_step != step
        trainer.save_checkpoint(self.last, storage_options={"previous": self.directory / PREVIOUS} if keeps else None)
        io = trainer.strategy.checkpoint_io
        assert isinstance(io, DurableCheckpoints)
        error = self.ranks.first(io.error and str(io.error))
        if error is None:
            if self.ranks.rank == 0:
                for name in self.stale:  # an earlier run's, in whose directory this one writes
                    (self.directory / name).unlink(missing_ok=True)
            self.saved_step, self.last_is_good, self.stale = step, True, ()
        elif self.ranks.rank == 0:
            good = f"the last good one is of step {self.saved_step}" if self.saved_step >= 0 else "there is none yet"
            then = "; training goes on" if trainer.training else ""
            news = f"the checkpoint at step {step} could not be written: {error}; {good}{then}"
            print(news, file=sys.stderr, flush=True)
        return error is None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Bring the best checkpoint of a resumed run along; clear away what is of no use to this run."""
        if self.ranks.rank == 0:
            for part in self.directory.glob(".*.part"):
                part.unlink(missing_ok=True)
        if self.best["step"] >= 0 and not self.ranks.first(self.ranks.rank == 0 and self._find_best()):
            self.best = {"nll": math.inf, "step": -1}
        brought = self.best["step"] >= 0
        self.stale = () if self.is_at_home else (PREVIOUS,) if brought else (PREVIOUS, BEST)

    def _find_best(self) -> bool:
        assert self.resumed_from is not None
        for path in (self.resumed_from.with_name(BEST), self.resumed_from):
            try:
                found = read_checkpoint(path)
            except UserError:
                continue
            record = found.get("callbacks", {}).get("Checkpoints", {}).get("best")
            if record == self.best and found["global_step"] == self.best["step"]:
                return path.resolve() == (self.directory / BEST).resolve() or self._copy_best(path)
        return False

    def validation_is_due(self, trainer: L.Trainer) -> bool:
        """Whether a validation follows the step that has just ended."""
        every = self.val_every_n_steps
        return trainer.is_last_batch if every is None else trainer.global_step % every == 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Save when it is time."""
        if trainer.global_step % self.every_n_steps == 0 and not self.validation_is_due(trainer):
            self.save(trainer)
        assert isinstance(pl_module, LanguageModelModule)
        self.boundary = StepBoundary(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, and keep a copy of the best."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, LanguageModelModule)
        before, nll = self.best, pl_module.figures["val/nll"]
        if nll < before["nll"]:
            self.best = {"nll": nll, "step": trainer.global_step}
        kept = self.save(trainer)
        if kept and self.best is not before:
            kept = self.ranks.first(self.ranks.rank == 0 and self._copy_best(self.last))
        if not kept:
            self.best = before

    def _copy_best(self, source: Path) -> bool:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            copy_checkpoint(source, self.directory / BEST)
        except OSError as error:
            print(f"{BEST} could not be written: {error}; the one before stays", file=sys.stderr, flush=True)
            return False
        return True

    def on_before_optimizer_step(self, trainer: L.Trainer, *args: Any) -> None:
        """From here to the end of the step its parts do not fit together."""
        self.boundary = None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save the state after the last whole step, unless the user or a rule ended the run."""
        ended = isinstance(exception, (UserError, KeyboardInterrupt))
        if ended or self.boundary is None or self.ranks.world_size > 1 or trainer.global_step == self.saved_step:
            return
        if trainer.state.stage == RunningStage.VALIDATING:
            return
        self.boundary.restore()
        self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The best validation so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on comparing."""
        self.best = state_dict["best"]


class StepBoundary:
    """Everything that an unfinished step changes, as it was after the step before.

    Weights and optimiser change at the very end of a step only; memory, streams, random state and Lightning's
    counters are on their way earlier. The memory is a value: keeping it costs nothing.
    """

    def __init__(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        self.trainer, self.module = trainer, module
        self.carried = (module.training_memory.memory, module.training_memory.next_number)
        self.random = RandomState.current()
        self.streams = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]

    def restore(self) -> None:
        """Take back what the unfinished step did."""
        self.module.training_memory.memory, self.module.training_memory.next_number = self.carried
        RandomState.set(self.random)
        self.trainer.train_dataloader.load_state_dict(self.streams)  # type: ignore[union-attr]
        loop = self.trainer.fit_loop.epoch_loop
        for tracker in (loop.batch_progress.total, loop.batch_progress.current):
            tracker.reset_on_restart()


def last_good(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of a run that is whole, and a line for each that is not.

    `last.ckpt` if it is good, else the later of `previous.ckpt` and `best.ckpt`.
    """
    complaints: list[str] = []
    steps: dict[Path, int] = {}
    for name in (LAST, PREVIOUS, BEST):
        path = directory / name
        if not path.exists():
            continue
        try:
            steps[path] = int(read_checkpoint(path)["global_step"])
        except UserError as error:
            complaints.append(str(error).replace("checkpoint=", "", 1))
        if name == LAST and path in steps:
            break
    return max(steps, key=lambda path: steps[path], default=None), complaints
