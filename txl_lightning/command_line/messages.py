"""One line per error: the option, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, get_type_hints

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from txl_lightning.command_line import Command
from txl_lightning.command_line.multirun import JobError, MultirunTable
from txl_lightning.config.schemas import CONF, OWN_OPTIONS
from txl_lightning.errors import UserError, require

EXPECTED = (UserError, HydraException, OmegaConfBaseException, YAMLError, OSError)
EXTRAS = {"optuna": "sweep", "submitit_slurm": "slurm"}  # choice of a group -> extra in pyproject.toml it needs
# In errors of submitit and Hydra without a class, with what to do.
OF_LIBRARIES = {
    'Could not detect "srun"': "",
    "Only one of --run": "",
    "Invalid defaults list": "",
    "in defaults : ": '; for YAML on and off are true and false, quote them: override /memory: "off"',
}

OF_LIGHTNING = (  # names of Lightning's Trainer and of other frames, and what to use here
    ("accumulate_grad_batches", "trainer.stream_groups=N divides data.batch_size, which is the batch of a step"),
    ("gradient_clip_val gradient_clip_algorithm max_grad_norm", "optimizer.clip_norm=NORM"),
    ("max_epochs min_epochs min_steps num_epochs epochs", "trainer.max_steps=N"),
    ("max_time", "'trainer.callbacks=[{_target_: lightning.pytorch.callbacks.Timer, duration: {hours: 1}}]'"),
    ("fast_dev_run", "profile=smoke trainer.max_steps=3"),
    ("limit_train_batches overfit_batches", "trainer.max_steps=N and a short text as data.path"),
    ("limit_val_batches", "trainer.val_max_segments=N"),
    ("limit_test_batches limit_predict_batches", "evaluation.max_segments=N"),
    ("profiler", "python -m cProfile -m txl_lightning.cli train …, or a callback in trainer.callbacks"),
    ("deterministic benchmark", "nothing: on the CPU a run repeats to the last bit, on a GPU it need not"),
    ("detect_anomaly", "nothing: steps that are not finite are skipped and reported"),
    ("val_check_interval check_val_every_n_epoch", "trainer.val_every_n_steps=N, or null for every epoch"),
    ("strategy gpus num_processes sync_batchnorm", "trainer=gpu, or trainer=ddp trainer.devices=N"),
    ("enable_checkpointing checkpoint_callback", "checkpoint.enabled=false"),
    ("enable_progress_bar", "trainer.progress_bar=false"),
    ("default_root_dir weights_save_path output_dir", "hydra.run.dir=FOLDER"),
    ("ckpt_path resume_from_checkpoint", "resume=CHECKPOINT"),
    ("auto_lr_find auto_scale_batch_size", "txl train -m with several values"),
    (
        "num_sanity_val_steps enable_model_summary reload_dataloaders_every_n_epochs inference_mode plugins barebones"
        " use_distributed_sampler enable_autolog_hparams model_registry",
        "nothing: it cannot be chosen",
    ),
)


def is_expected(error: BaseException) -> bool:
    """Return whether the user can act on an error; any other error is a defect and is shown with its traceback."""
    return isinstance(error, EXPECTED) or any(text in str(error) for text in OF_LIBRARIES)


def describe(error: BaseException, schema: type) -> str:
    """Return `one_line` of an expected error, and type and first line of any other."""
    if isinstance(error, (*EXPECTED, JobError)):
        return one_line(error, schema)
    return f"{type(error).__name__}: {_first_line(error)}"


def one_line(error: BaseException, schema: type) -> str:
    """Reduce an error of ours, of Hydra or of OmegaConf to one line.

    Args:
        error: of one of Hydra or OmegaConf the first line of its cause is shown too.
        schema: dataclass of the command's options, to suggest names from.
    """
    if isinstance(error, OSError) and error.filename:
        return _unusable_file(str(error.filename), error.strerror)
    if isinstance(error, OSError) and error.errno is not None:  # a full disk
        return f"{error.strerror}: {MultirunTable.run_directory or 'a file'} or the output cannot be written"
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        needs = f"needs pip install 'txl_lightning[{EXTRAS[choice]}]'" if choice in EXTRAS else ""
        return f"{group}={choice}: {needs or 'must be one of ' + ', '.join(error.options or ())}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: must be given ({error.full_key}=…)"
    if unknown := re.match(r"Could not override '([^']+)'", str(error)):
        typed = next((word for word in sys.argv if word.startswith(f"{unknown[1]}=")), unknown[1])
        return f"{typed}: no such option{suggestion(unknown[1], schema)}"
    if not isinstance(error, (HydraException, OmegaConfBaseException, YAMLError)):
        return _first_line(error) + next((hint for text, hint in OF_LIBRARIES.items() if text in str(error)), "")
    if error.__cause__ is not None:
        return f"{_first_line(error)}: {_first_line(error.__cause__)}"
    return " ".join(str(error).split())


@dataclass(frozen=True)
class Words:
    """Words after the name of a command, taken apart.

    Attributes:
        flags: Hydra's, with their values.
        overrides: `option=value`.
        own_folders: `--config-dir` and `hydra.searchpath`, where groups have further choices.
        wants_help: whether `--help` is among the flags.
    """

    flags: list[str]
    overrides: list[str]
    own_folders: list[Path]
    wants_help: bool

    @classmethod
    def read(cls, words: Sequence[str]) -> Words:
        """Take words apart as Hydra does, overrides on both sides of a flag too.

        Raises:
            UserError: a flag is not known or not allowed, or a folder does not exist.
        """
        parser = hydra_parser()
        given = parser.parse_intermixed_args(words)
        if given.experimental_rerun is not None:
            rerun = f"--experimental-rerun={given.experimental_rerun}"
            raise UserError(f"{rerun}: is not supported, reading this file can run code; repeat the overrides instead")
        own = [word for word in words if word in given.overrides]
        searched = [word for word in own if word.startswith("hydra.searchpath=")]
        folders = [Path(given.config_dir)] if given.config_dir is not None else []
        later = [override.value() for override in OverridesParser.create().parse_overrides(searched)]
        listed = [str(path) for paths in later if isinstance(paths, list) for path in paths]
        folders += [folder for path in listed for folder in _folders(path)]
        for path in folders:
            option = "--config-dir" if str(path) == given.config_dir else "hydra.searchpath"
            require(path.is_dir(), option, path, "is no folder")
        return cls([word for word in words if word not in own], own, folders, given.help)

    def choices(self, group: str, command: Command) -> list[str]:
        """Return the names of a group's files; of our experiments those in `published/` are for `txl evaluate`."""
        ours, of_evaluation = _names(CONF / group), command.name == "evaluate"
        if group == "experiment":
            ours = [name for name in ours if name.startswith("published/") == of_evaluation]
        return sorted({*ours, *(name for folder in self.own_folders for name in _names(folder / group))})

    def refuse_unusable(self, command: Command) -> None:
        """Refuse what Hydra would misread, or answer on several lines: unknown choices, `+option=value`.

        Raises:
            UserError: a word cannot be used.
        """
        for word in self.overrides:
            name, equals, value = word.partition("=")
            if not word.isascii() and word.encode(errors="replace").decode() != word:
                raise UserError(f"{ascii(word)[1:-1]}: must be UTF-8")
            if word.startswith("+"):
                raise UserError(f"{word}: options cannot be added{suggestion(name.lstrip('+'), command.schema)}")
            is_group = name and equals and not name.startswith("hydra")
            if is_group and any((folder / name).is_dir() for folder in (CONF, *self.own_folders)):
                self._refuse_choice(name, value, command)

    def _refuse_choice(self, group: str, value: str, command: Command) -> None:
        if value.startswith("[") and group != "experiment":  # Hydra would merge the choices, and the result is neither
            one = f"takes one choice; several need -m (a multirun): {group}={value.strip('[]')}"
            raise UserError(f"{group}={value}: {one}")
        allowed = self.choices(group, command)
        for choice in () if "(" in value or "$" in value else value.strip("[]").split(","):  # a sweep of Hydra
            if choice.strip("'\" ") not in (*allowed, *(["null"] if group == "experiment" else ())):
                custom = f" (a custom encoding: encoding.name={choice})" if group == "encoding" else ""
                raise UserError(f"{group}={choice}: must be one of {', '.join(allowed)}{custom}")
            hidden = next((folder for folder in self.own_folders if choice in _names(folder / group)), None)
            if hidden is not None and choice in _names(CONF / group):
                raise UserError(f"{group}={choice}: is ours too, give {hidden / group / choice}.yaml another name")


def hydra_parser() -> ArgumentParser:
    """Return Hydra's parser of flags (private), which raises a `UserError` instead of ending the process."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        word = message.removeprefix("unrecognized arguments: ").split(" ")[0]
        name, equals, value = word.partition("=")
        if not message.startswith("unrecognized arguments: "):
            raise UserError(f"{message} (--hydra-help lists the flags)")
        option = f"{name.lstrip('-')}={value if equals else '…'}"
        raise UserError(f"{word}: no such flag; options have no dashes: {option} (--help lists them)")

    parser.error = refuse  # type: ignore[method-assign]
    return parser


def _names(folder: Path) -> list[str]:
    return [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]


def _folders(path: str) -> list[Path]:
    """Return the folder that an element of `hydra.searchpath` names; a package may have several."""
    scheme, _, place = path.rpartition("://")
    if scheme != "pkg":
        return [Path(place)]
    with suppress(ModuleNotFoundError):
        if spec := find_spec(place.replace("/", ".")):
            return [Path(found) for found in spec.submodule_search_locations or ()]
    return [Path(path)]


def suggestion(key: str, schema: type) -> str:
    """Return `, did you mean …?` with the option names nearest to `key`, what Lightning's name is here, or a hint."""
    group, _, option = key.rpartition(".")
    for known, use in OF_LIGHTNING if group in ("", "trainer") and "trainer" in get_type_hints(schema) else ():
        if option in known.split():
            return f" (a name of Lightning's; here: {use})"
    for corpus, kind in OWN_OPTIONS.items() if group == "data" else ():
        if option in kind.__annotations__:
            return f", it is of data={corpus}"
    names = []
    for name, kind in get_type_hints(schema).items():
        inner = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names += [name, *(f"{name}.{field.name}" for field in inner)]
    same_end = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    near = same_end or difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else " (--help lists them)"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _unreadable(word: str) -> str:
    """Return the error of a word that Hydra's grammar cannot read."""
    name, equals, value = word.partition("=")
    if not equals:
        return f"{word}: must be option=value (--help lists the options; a value with spaces needs quotes)"
    if value.startswith(("[", "{", "'", '"')):
        return f"{word}: a bracket or a quote is missing"
    return f"{word}: cannot be parsed; a value with special signs needs quotes: \"{name}='{value}'\""


def _unusable_file(name: str, problem: str | None) -> str:
    """Return the error of a file or folder, with the option that names it, or a folder above or below it."""
    for word in sys.argv:
        path = word.partition("=")[2]
        if path and (path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/")):
            return f"{word}: cannot be used ({name}: {problem})"
    return f"{name}: {problem}"
