"""Where a run begins: from scratch, from a checkpoint that it resumes, or from given weights; and its directory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from txl_lightning.config.architecture import LENGTHS
from txl_lightning.config.schemas import WITHOUT_PATH, Config, flat, plain, stored
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.models import Model, architecture
from txl_lightning.evaluation.trained import Checkpoint, read_checkpoint
from txl_lightning.files import write_text
from txl_lightning.reporting.code import code_version
from txl_lightning.training.checkpoints import (
    BEST,
    LAST,
    PREVIOUS,
    is_in_run,
    last_good,
    remove_later_steps,
)

# A resumed run must have the same options as the checkpoint's run and its validations, whose losses it compares, except
# where the corpus files are. An option that an older checkpoint lacks has its default there. `memory.segments` only
# gives `memory.mem_len` its value.
FIXED = (
    *("data.", "model.", "encoding.", "memory.", "variant.", "optimizer."),
    *("seed", "loss", "trainer.precision", "trainer.val_max_segments", "evaluation."),
)
FREE = (
    *("data.root", "data.path", "data.tokenizer", "data.names", "data.cache_dir"),
    *("model.name", "memory.segments", "evaluation.max_segments"),
)
NON_ARCHITECTURE_FIELDS = {  # may differ between a checkpoint and the model that takes its weights
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout", "init_std"),
    *LENGTHS,
    "vocab_size",
}
ANOTHER = "choose another hydra.run.dir=FOLDER"
OTHER_TEXT = (
    "was trained on another text than this corpus has now: "
    "give the old files, or initial_weights= to train on this text"
)
CURVES = ("validation.jsonl", "context_curve.jsonl", "context_curve.png", "metrics.json")


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Args:
        resumed: the checkpoint from which the run goes on.
        weights: the checkpoint in `initial_weights`.
        continues: whether the resumed run belongs to the directory, found by `resume=auto`.
    """

    resumed: Checkpoint | None = None
    weights: Checkpoint | None = None
    continues: bool = False

    @classmethod
    def of(cls, config: Config, directory: Path, ranks: Ranks) -> Start:
        """Open the checkpoint that the config names.

        `resume=auto` means the run directory's last good one. Rank 0 chooses it and reports the choice.

        Raises:
            OptionError: it cannot be read; with `auto`, several exist and none can be read, so no run is replaced
                unasked.
        """
        path = resumed_path(config)
        if config.resume == "auto":
            found = _find_last(directory) if ranks.rank == 0 else None
            path = ranks.first(found)
        if path is not None:
            return cls(read_checkpoint(path, option="resume"), continues=config.resume == "auto")
        if config.initial_weights is not None:
            return cls(weights=read_checkpoint(config.initial_weights, option="initial_weights"))
        return cls()

    @property
    def ended_by(self) -> str | None:
        """Callback that ended the run which `resume=auto` finds; another `resume` trains on."""
        if self.resumed is None or not self.continues:
            return None
        return self.resumed.record.get("ended_by")


def resumed_path(config: Config) -> Path | None:
    """Return the checkpoint that `resume` names; None for other values."""
    if config.resume in WITHOUT_PATH:
        return None
    return Path(str(config.resume))


def _find_last(directory: Path) -> Path | None:
    folder = directory / "checkpoints"
    path, damaged = last_good(folder)
    for line in damaged:
        print(line, file=sys.stderr, flush=True)
    unreadable = f"no checkpoint of its run can be read: {ANOTHER}"
    require(path is not None or not damaged, "hydra.run.dir", directory, unreadable)
    start = f"resuming from {path}"
    if path is None:
        start = f"no checkpoint in {folder}, starting from scratch"
    print(f"resume=auto: {start}", file=sys.stderr, flush=True)
    return path


def refuse_to_replace(config: Config, directory: Path) -> None:
    """Refuse a folder that holds a run, unless this one continues it, or it is finished and `resume=replace` is given.

    Raises:
        OptionError: `hydra.run.dir` is such a folder.
    """
    folder = directory / "checkpoints"
    is_finished = (directory / "metrics.json").exists()
    names = (
        (LAST,) if is_finished else (LAST, PREVIOUS, BEST)
    )  # a kill while it was replaced leaves the second two
    is_saved = any((folder / name).exists() for name in names)
    path = resumed_path(config)
    continues = config.resume == "auto" and is_saved
    if continues or (path is not None and is_in_run(directory, path)):
        return
    unfinished = f"holds an unfinished run: continue it with resume=auto, or {ANOTHER}"
    require(is_finished or not is_saved, "hydra.run.dir", directory, unfinished)
    replaced = f"holds a finished run: {ANOTHER}, or replace it with resume=replace"
    require(config.resume == "replace" or not is_finished, "hydra.run.dir", directory, replaced)


def prepare_directory(
    config: Config, directory: Path, resumed: Checkpoint | None, tokenizer: str | None
) -> None:
    """Create the run directory with `config.yaml` and `tokenizer.json`; remove the run that this one replaces.

    What an unfinished run without a checkpoint has left is removed too, and the user is told.
    """
    done = -1
    if resumed is not None and is_in_run(directory, resumed.path):
        done = resumed.step
    else:
        _remove_earlier_run(config, directory)
    remove_later_steps(directory / "checkpoints", done)
    directory.mkdir(parents=True, exist_ok=True)
    code = code_version()
    header = f"# txl_lightning {code['version']}, commit {code['commit'] or 'unknown'}\n"
    write_text(
        directory / "config.yaml", header + OmegaConf.to_yaml(OmegaConf.create(stored(config)))
    )
    if tokenizer:
        write_text(directory / "tokenizer.json", tokenizer)


def _remove_earlier_run(config: Config, directory: Path) -> None:
    """Remove checkpoints first: then `resume=auto` never continues a run that a kill has left half removed."""
    names = list(CURVES)
    if config.resume == "replace":
        names = [f"checkpoints/{name}" for name in (LAST, PREVIOUS, BEST)] + names
    paths = [directory / name for name in names if (directory / name).exists()]
    if paths:
        print(
            f"{directory} holds an earlier run, which this one replaces",
            file=sys.stderr,
            flush=True,
        )
    for path in paths:
        path.unlink()


def check_same_run(config: Config, resumed: Checkpoint, corpus: str) -> None:
    """Check that a checkpoint's run has the same model, corpus, streams, memory, loss, optimizer and validation.

    Raises:
        OptionError: an option differs (names the first one), or the file has no training state.
    """
    resumed.require(
        "optimizer_states" in resumed.contents,
        "holds weights only: start from them with initial_weights=",
    )
    before = flat(plain(resumed.config))
    for name, value in flat(plain(config)).items():
        is_fixed = name.startswith(FIXED) and name not in FREE
        if is_fixed and before.get(name, value) != value:
            option = name.removesuffix(".name") if name.count(".") == 1 else name
            raise OptionError(option, value, f"must be {before[name]}, as in resume={resumed.path}")
    is_same_text = resumed.record.get("corpus") in (None, corpus)
    resumed.require(is_same_text, OTHER_TEXT)


def load_weights(model: Model, checkpoint: Checkpoint, vocabulary: Vocabulary) -> None:
    """Load the weights from `resume`'s or `initial_weights`' checkpoint into a model for a corpus.

    Raises:
        OptionError: the checkpoint has another architecture or vocabulary.
    """
    allowed = "was trained on another vocabulary than this corpus has"
    checkpoint.require(checkpoint.vocabulary == vocabulary, allowed)
    free = NON_ARCHITECTURE_FIELDS | model.config_class.initial_only
    for name, value in vars(architecture(checkpoint.config, len(vocabulary))).items():
        needed = getattr(model.config, name, None)
        allowed = f"is of another model: {name} is {value}, this model needs {needed}"
        checkpoint.require(name in free or value == needed, allowed)
    checkpoint.load_into(model)
