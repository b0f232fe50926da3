"""Checkpoints of a run: written while it trains, resumed from, or taken as initial weights."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import OmegaConf

from txl_lightning.config.architecture import LENGTHS
from txl_lightning.config.schemas import WITHOUT_PATH, Config, flat, plain, stored
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import PART, write_text
from txl_lightning.runs.models import Model, architecture
from txl_lightning.runs.storage import (
    MEMORY,
    copy_checkpoint,
    named_files,
    plain_containers,
    read_file,
    remove_unused_memory,
    write_checkpoint,
)
from txl_lightning.runs.trained import Checkpoint, continues_in, read_checkpoint
from txl_lightning.training.curves import reported
from txl_lightning.training.module import UnwrittenMemory

LAST, PREVIOUS, BEST, BEST_OF = "last.ckpt", "previous.ckpt", "best.ckpt", "best-*.ckpt"

# A resumed run must have the options of the checkpoint's run, those of its validations too, whose losses it compares,
# but for where the files of the corpus are. An option that an older checkpoint lacks has its default there.
# `memory.segments` only gives `memory.mem_len` its value.
FIXED = (
    *("data.", "model.", "encoding.", "memory.", "variant.", "optimizer."),
    *("seed", "loss", "trainer.precision", "trainer.val_max_segments", "evaluation."),
)
FREE = {
    *("data.root", "data.path", "data.tokenizer", "data.names", "data.cache_dir"),
    *("model.name", "memory.segments", "evaluation.max_segments"),
}

NON_ARCHITECTURE_FIELDS = {  # may differ between a checkpoint and the model that takes its weights
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout", "init_std"),
    *LENGTHS,
    "vocab_size",
}
ANOTHER = "choose another hydra.run.dir=FOLDER"
NO_BEST: dict[str, Any] = {"nll": math.inf, "step": -1}  # before the first validation


class Checkpoints(Callback):
    """Writes the last state of the run, keeps the one before, and the best by validation loss.

    `last.ckpt` is written every n steps, after every validation, when the run is stopped and at its end.
    `previous.ckpt` is the `last.ckpt` before it, `best.ckpt` a link to, or a copy of, the one with the lowest
    validation loss. If a validation is due after a step, the checkpoint follows it; otherwise a resumed run would skip
    that validation. A failed write is reported and training continues; those of the last validation are tried again at
    the end, where they must succeed.

    `best-{N}.ckpt` are the `checkpoint.keep_best` best checkpoints, of step N each: links, as `best.ckpt` is.

    `step{N}.ckpt` is written every `checkpoint.keep_every_n_steps`: weights, config and vocabulary, enough for every
    evaluation. A run cannot resume from them. Those of steps that a run has yet to do are removed at its start.

    Args:
        directory: folder of the checkpoints.
        config: its `checkpoint` and interval of validation (null: the end of every epoch); the last step is validated
            too.
        ranks: the processes of the run.
        record: `config`, `vocabulary`, `corpus` (its checksum) and `wandb_id` (None without W&B), added to every
            checkpoint, so that its file alone is enough to use the model. Plain containers only, so that loading a
            checkpoint runs no code.
        resumed: the checkpoint that the run continues; its best checkpoint is next to it. None for a new run.

    Attributes:
        best: nll and step of the best validation so far; infinite and -1 before the first.
        kept: nll of the validations whose checkpoints are kept, by step.
        newest: the last checkpoint; before the first one here that which was resumed, None for a new run.
        saved_step: its step; -1 if there is none.
    """

    def __init__(
        self, directory: Path, config: Config, ranks: Ranks, record: dict[str, Any], resumed: Checkpoint | None
    ) -> None:
        self.directory, self.ranks, self.record = directory, ranks, record
        self.options, self.val_every_n_steps = config.checkpoint, config.trainer.val_every_n_steps
        self.newest: Path | None = resumed.path if resumed else None
        self.saved_step = resumed.step if resumed else -1
        self.best: dict[str, Any] = NO_BEST
        self.kept: dict[int, float] = {}
        self.incomplete = False  # whether a write failed at the last validation

    @property
    def to_continue(self) -> str:
        """How to continue the run, wherever it was stopped: after its last step no `resume=PATH` is allowed."""
        return f"to continue, repeat the command with hydra.run.dir={self.directory.parent} resume=auto"

    @property
    def best_path(self) -> Path | None:
        """Path of the best checkpoint; None before the first validation."""
        return self.directory / BEST if self.best["step"] >= 0 else None

    def save(self, trainer: L.Trainer) -> bool:
        """Write `last.ckpt`; all ranks must call this. Return whether it was written.

        A damaged `last.ckpt` does not become `previous.ckpt`.
        """
        step, last = trainer.global_step, self.directory / LAST
        last_is_good = self.newest is not None and self.newest.resolve() == last.resolve()
        options = {"previous": self.directory / PREVIOUS} if last_is_good and self.saved_step != step else None
        error: OSError | None
        try:
            trainer.save_checkpoint(last, storage_options=options)
            error = self.ranks.first(cast("DurableCheckpoints", trainer.strategy.checkpoint_io).error)
        except UnwrittenMemory as failed:
            error = failed
        if self.ranks.rank == 0:
            with reported(MEMORY):
                remove_unused_memory(self.directory)
        if error is None:
            self.newest, self.saved_step = last, step
        else:
            before = f"the last one is of step {self.saved_step}" if self.saved_step >= 0 else "there is none yet"
            then = "; training continues" if trainer.training else ""
            self.ranks.report(f"could not write the checkpoint of step {step}: {error}; {before}{then}")
        return error is None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add what makes the file enough to use the model; leave out what a custom callback saves and none can read."""
        for part, names in ((checkpoint["callbacks"], ()), (checkpoint, ("callbacks", "state_dict"))):
            for name in [name for name in part if name not in names]:
                try:
                    part[name] = plain_containers(part[name])
                except TypeError as error:
                    del part[name]
                    advice = f"a checkpoint holds numbers, text, tensors, lists and dictionaries, not {error}"
                    notice(f"trainer.callbacks: the state {name} is left out of every checkpoint: {advice}")
        ended_by = cast("Any", trainer).ended_by
        checkpoint["txl_lightning"] = {**self.record, "ended_by": ended_by} if ended_by else self.record

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Say where the memory's files go; remove partial files and checkpoints of steps that this run has yet to do.

        The best checkpoint of a resumed run is copied here.
        """
        pl_module.training_memory.folder = self.directory
        if self.ranks.rank == 0:
            for path in (path for kind in (f"{PART}*", "step*.ckpt", BEST_OF) for path in self.directory.glob(kind)):
                number = path.stem.removeprefix("step").removeprefix("best-")
                if path.name.startswith(PART) or (number.isdecimal() and int(number) > self.saved_step):
                    path.unlink(missing_ok=True)
        if self.best["step"] >= 0 and not self.ranks.first(self.ranks.rank == 0 and self._find_best()):
            self.best = NO_BEST

    def _find_best(self) -> bool:
        assert self.newest is not None  # the resumed one
        for path in (self.newest.with_name(BEST), self.newest):
            try:
                found = read_checkpoint(path)
            except UserError:
                continue
            record = found.contents.get("callbacks", {}).get(self.state_key, {}).get("best")
            if record == self.best and found.step == self.best["step"]:
                return path.resolve() == (self.directory / BEST).resolve() or self._copy_best(path)
        return False

    def validation_is_due(self, trainer: L.Trainer) -> bool:
        """Return whether a validation follows the step that has just ended."""
        every, step = self.val_every_n_steps, trainer.global_step
        return step >= trainer.max_steps or (trainer.is_last_batch if every is None else step % every == 0)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        step, kept = trainer.global_step, self.options.keep_every_n_steps
        if kept is not None and step % kept == 0 and self.ranks.rank == 0:
            contents = {"state_dict": pl_module.state_dict(), "global_step": step, "txl_lightning": self.record}
            with reported(f"step{step}.ckpt"):
                self.directory.mkdir(parents=True, exist_ok=True)
                write_checkpoint(contents, self.directory / f"step{step}.ckpt")
        if step % self.options.every_n_steps == 0 and not self.validation_is_due(trainer):
            self.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            return
        before, nll, step = self.best, pl_module.metrics["val/nll"], trainer.global_step
        by_loss = sorted({**self.kept, step: nll}.items(), key=lambda item: item[1])
        self.kept = dict(by_loss[: self.options.keep_best or 0])
        if nll < before["nll"]:
            self.best = {"nll": nll, "step": step}
        written = self.save(trainer)
        if written and self.best is not before:
            written = self.ranks.first(self.ranks.rank == 0 and self._copy_best(self.directory / LAST))
        if written and self.ranks.rank == 0 and self.kept:
            self._keep_best(step)
        self.incomplete = not written
        if not written:
            self.best = before

    def finish(self, trainer: L.Trainer) -> None:
        """Try the writes after the last validation again, if one failed; all ranks must call this.

        Raises:
            UserError: one fails again, so that a result would not be that of the trained weights.
        """
        if self.incomplete:
            self.on_validation_end(trainer, trainer.lightning_module)
        if self.incomplete:
            end = f"the checkpoints of the last step, {trainer.global_step}, could not be written"
            raise UserError(f"{self.directory}: {end}; {self.to_continue}")

    def _copy_best(self, source: Path) -> bool:
        with reported(BEST):
            self.directory.mkdir(parents=True, exist_ok=True)
            copy_checkpoint(source, self.directory / BEST)
            return True
        return False

    def _keep_best(self, step: int) -> None:
        """Keep the checkpoint of a validation if it is one of the best, and remove those that no longer are."""
        names = {of_step: BEST_OF.replace("*", str(of_step)) for of_step in self.kept}
        with reported(BEST_OF):
            for path in self.directory.glob(BEST_OF):
                if path.name not in names.values():
                    path.unlink()
            if step in names:
                copy_checkpoint(self.directory / LAST, self.directory / names[step])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.kept = state_dict["best"], state_dict["kept"]


class DurableCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoint plugin that writes through `write_checkpoint` and keeps errors of the disk.

    Raising such an error would end a long training run and leave the other ranks waiting for the first one.
    The caller checks `error` instead.

    Args:
        resumed: contents of the checkpoint that the run resumes from; it is not read again.

    Attributes:
        error: why the last checkpoint could not be written; None if it was.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.resumed = resumed
        self.error: OSError | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write on the first rank; `storage_options` may hold `previous` (see `write_checkpoint`)."""
        self.error = None
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(checkpoint, Path(path), **(storage_options or {}))
        except OSError as error:
            self.error = error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return these contents, once."""
        resumed, self.resumed = self.resumed, None
        return resumed


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

    def state_dict(self) -> dict[str, Any]:
        """Return the states of torch on all ranks: of the CPU and of each process's GPU."""
        state = {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
        }
        return {"ranks": self.ranks.gather(state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Restore the state here, after everything that draws random numbers before the first step."""
        if self._loaded is None:
            return
        if self.ranks.rank >= len(self._loaded):
            L.seed_everything(self.ranks.seed(self.seed, trainer.global_step), verbose=False)
            return
        state = self._loaded[self.ranks.rank]
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        if state.get("mps") is not None and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"])


@dataclass(frozen=True)
class Start:
    """Where a run begins: from scratch, from the checkpoint that it resumes, or from weights with another training.

    Args:
        resumed: checkpoint of the run that goes on.
        weights: checkpoint of `initial_weights`.
        continues: whether the resumed run is that of the directory, found by `resume=auto`.
    """

    resumed: Checkpoint | None = None
    weights: Checkpoint | None = None
    continues: bool = False

    @classmethod
    def of(cls, config: Config, directory: Path, ranks: Ranks) -> Start:
        """Open the checkpoint that the config names.

        `resume=auto` means the last good one of the run directory. Rank 0 chooses it and reports the choice.

        Raises:
            OptionError: it cannot be read; with `auto`, none of several, so that no run is replaced unasked.
        """
        path = None if config.resume in WITHOUT_PATH else Path(str(config.resume))
        if config.resume == "auto":
            folder = directory / "checkpoints"
            path, damaged = ranks.first(last_good(folder) if ranks.rank == 0 else (None, []))
            start = f"no checkpoint in {folder}, starting from scratch" if path is None else f"resuming from {path}"
            readable = path is not None or not damaged
            ranks.report(*damaged, *[f"resume=auto: {start}"] * readable)
            require(readable, "hydra.run.dir", directory, f"no checkpoint of its run can be read: {ANOTHER}")
        if path is not None:
            return cls(read_checkpoint(path, option="resume"), continues=config.resume == "auto")
        weights = config.initial_weights
        return cls(weights=None if weights is None else read_checkpoint(weights, option="initial_weights"))

    @property
    def ended_by(self) -> str | None:
        """Callback that ended the run which `resume=auto` finds; another `resume` trains on."""
        return self.resumed.record.get("ended_by") if self.resumed and self.continues else None


def last_good(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint of a run, and a message for each damaged one.

    Prefers `last.ckpt`; if it is missing or damaged, the later of `previous.ckpt` and `best.ckpt`.
    """
    messages: list[str] = []
    steps: dict[Path, int] = {}
    for path in (directory / LAST, directory / PREVIOUS, directory / BEST):
        if path.exists() and directory / LAST not in steps:
            try:
                found = read_checkpoint(path)
                for file in named_files(found.contents):
                    if (directory / file).exists():
                        read_file(directory / file, "checkpoint")
                steps[path] = found.step
            except UserError as error:
                messages.append(str(error).replace("checkpoint=", "", 1))
    return max(steps, key=lambda path: steps[path], default=None), messages


def refuse_to_replace(config: Config, directory: Path) -> None:
    """Refuse a folder that holds a run, unless this one continues it, or it is finished and `resume=replace` is given.

    Raises:
        OptionError: `hydra.run.dir` is such a folder.
    """
    folder, finished = directory / "checkpoints", (directory / "metrics.json").exists()
    whole = (LAST,) if finished else (LAST, PREVIOUS, BEST)  # a kill while it was replaced leaves the second two
    saved = any((folder / name).exists() for name in whole)
    path = None if config.resume in WITHOUT_PATH else Path(str(config.resume))
    if (path and continues_in(directory, path)) or (config.resume == "auto" and saved):
        return
    unfinished = f"holds an unfinished run: continue it with resume=auto, or {ANOTHER}"
    require(finished or not saved, "hydra.run.dir", directory, unfinished)
    replaced = f"holds a finished run: {ANOTHER}, or replace it with resume=replace"
    require(config.resume == "replace" or not finished, "hydra.run.dir", directory, replaced)


def prepare_directory(config: Config, directory: Path, resumed: Checkpoint | None, tokenizer: str | None) -> None:
    """Create the run directory with `config.yaml` and `tokenizer.json`; remove the run that this one replaces.

    What an unfinished run without a checkpoint has left is removed too, and the user is told.
    """
    if resumed is None or not continues_in(directory, resumed.path):
        # In this order, so that `resume=auto` never goes on with a run that a kill has left half removed.
        names = [f"checkpoints/{name}" for name in (LAST, PREVIOUS, BEST) if config.resume == "replace"]
        names += ["metrics.csv", "validation.jsonl", "context_curve.jsonl", "context_curve.png", "metrics.json"]
        if found := [directory / name for name in names if (directory / name).exists()]:
            print(f"{directory} holds an earlier run, which this one replaces", file=sys.stderr, flush=True)
        for path in found:
            path.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(stored(config))))
    if tokenizer:
        write_text(directory / "tokenizer.json", tokenizer)


def check_same_run(config: Config, resumed: Checkpoint, corpus: str) -> None:
    """Check that a checkpoint is of a run with the same model, corpus, streams, memory, loss, optimizer and validation.

    Raises:
        OptionError: an option differs (names the first one), or the file holds weights only.
    """
    whole = "pytorch-lightning_version" in resumed.contents
    resumed.require(whole, "holds weights only: start from them with initial_weights=")
    before, now = flat(plain(resumed.config)), flat(plain(config))
    seed_is_read = config.data.random_start or config.data.name == "lm1b"
    free = FREE | ({"data.document_start"} if config.memory.reset != "document" else set())
    free |= set() if seed_is_read else {"data.seed"}
    for name in (name for fixed in FIXED for name in now if name.startswith(fixed)):
        if name not in free and name in before and before[name] != now[name]:
            option = name.removesuffix(".name") if name.count(".") == 1 else name
            raise OptionError(option, now[name], f"must be {before[name]}, as in resume={resumed.path}")
    same = resumed.record.get("corpus") in (None, corpus)
    resumed.require(same, "was trained on another text than this corpus has now")


def load_weights(model: Model, found: Checkpoint, vocabulary: Vocabulary) -> None:
    """Load the weights of a checkpoint of `resume` or `initial_weights` into the model of a corpus.

    Raises:
        OptionError: the checkpoint has another architecture or vocabulary.
    """
    found.require(found.vocabulary == vocabulary, "was trained on another vocabulary than this corpus has")
    free = NON_ARCHITECTURE_FIELDS | model.config_class.initial_only
    for name, value in vars(architecture(found.config, len(vocabulary))).items():
        needed = getattr(model.config, name, None)
        allowed = f"is of another model: {name} is {value}, this model needs {needed}"
        found.require(name in free or value == needed, allowed)
    found.load_into(model)
