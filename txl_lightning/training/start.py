"""Where a run begins: from scratch, from a checkpoint that it resumes, or from given weights; and its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from txl_lightning.config.architecture import LENGTHS
from txl_lightning.config.schemas import WITHOUT_PATH, Config, flat, plain, stored
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.models import Model, architecture
from txl_lightning.evaluation.trained import Checkpoint, read_checkpoint
from txl_lightning.files import write_text
from txl_lightning.ranks import Ranks
from txl_lightning.reporting.code import code_version
from txl_lightning.training.checkpoints import BEST, LAST, NO_STATE, PREVIOUS, is_in_run

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


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Args:
        resumed: the checkpoint from which the run goes on.
        weights: the checkpoint in `initial_weights`.
        ended_by: callback that ended the run which `resume=auto` finds; another `resume` trains on.
    """

    resumed: Checkpoint | None = None
    weights: Checkpoint | None = None
    ended_by: str | None = None

    @classmethod
    def of(cls, config: Config, directory: Path, ranks: Ranks) -> Start:
        """Open the checkpoint that the config names.

        `resume=auto` means the run directory's last good one. Rank 0 chooses it and reports the choice.

        Raises:
            OptionError: it cannot be read; with `auto`, none of several.
        """
        path = resumed_path(config)
        if config.resume == "auto":
            if ranks.rank == 0:
                path = _find_last(directory, ranks)
            path = ranks.first(path)
        if path is not None:
            resumed = read_checkpoint(path, option="resume")
            if config.resume == "auto":
                return cls(resumed, ended_by=resumed.record.get("ended_by"))
            return cls(resumed)
        if config.initial_weights is not None:
            return cls(weights=read_checkpoint(config.initial_weights, option="initial_weights"))
        return cls()


def resumed_path(config: Config) -> Path | None:
    """Return the checkpoint that `resume` names; None for other values."""
    if config.resume in WITHOUT_PATH:
        return None
    return Path(str(config.resume))


def _find_last(directory: Path, ranks: Ranks) -> Path | None:
    """Return the newest of the run's checkpoints that can be read; None without any."""
    is_damaged = False
    for name in (LAST, PREVIOUS, BEST):
        path = directory / "checkpoints" / name
        if not path.exists():
            continue
        try:
            read_checkpoint(path, option="resume")
        except UserError as error:
            is_damaged = True
            ranks.report(str(error))
        else:
            ranks.report(f"resume=auto: resuming from {path}")
            return path
    unreadable = f"no checkpoint of its run can be read: {ANOTHER}"
    require(not is_damaged, "hydra.run.dir", directory, unreadable)
    ranks.report(f"resume=auto: no checkpoint in {directory}/checkpoints, starting from scratch")
    return None


def refuse_to_replace(config: Config, directory: Path) -> None:
    """Refuse a folder that holds a run, unless this one continues it.

    Raises:
        OptionError: `hydra.run.dir` is such a folder.
    """
    path = resumed_path(config)
    if config.train and path is not None and is_in_run(directory, path):
        return
    folder = directory / "checkpoints"
    is_saved = any((folder / name).exists() for name in (LAST, PREVIOUS, BEST))
    if config.train and is_saved and config.resume == "auto":
        return
    is_finished = (directory / "metrics.json").exists()
    finished = f"holds a finished run: {ANOTHER}, or delete this one"
    require(not is_finished, "hydra.run.dir", directory, finished)
    unfinished = f"holds an unfinished run: continue it with resume=auto, or {ANOTHER}"
    require(not is_saved, "hydra.run.dir", directory, unfinished)


def prepare_directory(config: Config, directory: Path, tokenizer: str | None) -> None:
    """Create the run directory with `config.yaml` and `tokenizer.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    code = code_version()
    commit = code["commit"] or "unknown"
    header = f"# txl_lightning {code['version']}, commit {commit}\n"
    text = OmegaConf.to_yaml(OmegaConf.create(stored(config)))
    write_text(directory / "config.yaml", header + text)
    if tokenizer:
        write_text(directory / "tokenizer.json", tokenizer)


def check_same_run(config: Config, resumed: Checkpoint, corpus: str) -> None:
    """Check that a checkpoint's run has the same model, corpus, streams, memory, loss, optimizer and validation.

    Raises:
        OptionError: an option differs (names the first one), or the file has no training state.
    """
    resumed.require(
        "optimizer_states" in resumed.contents,
        f"{NO_STATE}: start from them with initial_weights=",
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
        allowed = f"has another model: {name} is {value}, this model needs {needed}"
        checkpoint.require(name in free or value == needed, allowed)
    checkpoint.load_into(model)
