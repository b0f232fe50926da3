"""One line per error: the option, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Sequence
from traceback import walk_tb
from typing import get_type_hints

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from txl_lightning.command_line import Command, current
from txl_lightning.config.schemas import CONF, OWN_OPTIONS
from txl_lightning.errors import UserError, first_line
from txl_lightning.registry import CHOICES, of_a_file

EXPECTED = (UserError, HydraException, OmegaConfBaseException, YAMLError, OSError)
EXTRAS = {"optuna": "sweep", "submitit_slurm": "slurm"}  # choice of a group -> extra in pyproject.toml it needs
# In errors of submitit and Hydra without a class, with what to do.
OF_LIBRARIES = {
    **dict.fromkeys(('not detect "srun"', "Only one of --run", "Invalid defaults list", "provider=hydra.search"), ""),
    "Config group override must be": "; quote them: {memory: 'on,off'}, of which YAML makes true and false",
    "in defaults : ": '; for YAML on and off are true and false, quote them: override /memory: "off"',
}
OF_LIGHTNING = {  # names of Lightning's Trainer, and what to use here
    "accumulate_grad_batches": "trainer.stream_groups=N divides data.batch_size, which is the batch of a step",
    "gradient_clip_val": "optimizer.clip_norm=NORM",
    "max_epochs": "trainer.max_steps=N",
    "fast_dev_run": "profile=smoke trainer.max_steps=3",
    "limit_val_batches": "trainer.val_max_segments=N",
    "limit_test_batches": "evaluation.max_segments=N",
    "val_check_interval": "trainer.val_every_n_steps=N, or null for every epoch",
    "strategy": "trainer=gpu, or trainer=ddp trainer.devices=N",
    "default_root_dir": "hydra.run.dir=FOLDER",
    "ckpt_path": "resume=CHECKPOINT",
}


def is_expected(error: BaseException) -> bool:
    """Return whether the user can act on an error; any other error is a defect and is shown with its traceback."""
    return isinstance(error, EXPECTED) or any(text in str(error) for text in OF_LIBRARIES) or bool(_plugin(error))


def _plugin(error: BaseException) -> str | None:
    """Return the Hydra plugin that cannot be imported, or lacks a library at its first use; None for other errors."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    scanned = [frame.f_locals["modname"] for frame in frames if frame.f_code.co_name == "_scan_all_plugins"]
    last = frames[-1].f_globals["__name__"] if frames and isinstance(error, ImportError) else ""
    return scanned[0] if scanned else last if last.startswith("hydra_plugins.") else None


def one_line(error: BaseException, schema: type) -> str:
    """Reduce an error to one line; a defect of the program is named by its type.

    Args:
        error: of one of Hydra or OmegaConf the first line of its cause is shown too.
        schema: dataclass of the command's options, to suggest names from.
    """
    if plugin := _plugin(error):
        why = f"{type(error).__name__}: {first_line(error)}"
        return f"{plugin}: this plugin of Hydra cannot be imported, uninstall or upgrade it ({why})"
    if isinstance(error, OSError) and error.filename:
        return _unusable_file(str(error.filename), error.strerror)
    if isinstance(error, OSError) and error.errno is not None:  # a full disk
        return f"{error.strerror}: {current().run_directory or 'a file'} or the output cannot be written"
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _missing_choice(str(error.missing_cfg_file), error.options or ())
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: must be given ({error.full_key}=…)"
    if unknown := re.match(r"Could not override '([^']+)'", str(error)):
        typed = next((word for word in sys.argv if word.startswith(f"{unknown[1]}=")), unknown[1])
        added = f"; Hydra adds it by +{typed}" if typed.startswith("hydra.") else ""
        return f"{typed}: no such option{added or suggestion(unknown[1], schema)}"
    if not isinstance(error, (HydraException, OmegaConfBaseException, YAMLError)):
        hint = next((hint for text, hint in OF_LIBRARIES.items() if text in str(error)), None)
        is_defect = hint is None and not isinstance(error, EXPECTED)
        return (f"{type(error).__name__}: " if is_defect else "") + first_line(error) + (hint or "")
    if error.__cause__ is not None:
        return f"{first_line(error)}: {first_line(error.__cause__)}"
    return " ".join(str(error).split())


def choices_of(group: str, command: Command | None = None, own: Sequence[str] = ()) -> list[str]:
    """Return the names of a group's files; of experiments those in `published/` are for `txl evaluate`.

    Args:
        group: name of a folder in `conf/`, or of one of Hydra's groups.
        command: leave out experiments of other commands.
        own: names that Hydra found, those of the user's files included.
    """
    names = [path.relative_to(CONF / group).with_suffix("").as_posix() for path in (CONF / group).rglob("*.yaml")]
    if command is not None and group == "experiment":
        names = [name for name in names if name.startswith("published/") == (command.name == "evaluate")]
    names += [name for of_group, name in CHOICES if of_group == group]
    return sorted({*names, *(name for name in own if not name.endswith("schema"))})  # of the schemas in Hydra's store


def suggestion(key: str, schema: type) -> str:
    """Return `, did you mean …?` with the option names nearest to `key`, what Lightning's name is here, or a hint."""
    group, _, option = key.rpartition(".")
    if option in OF_LIGHTNING and group in ("", "trainer") and "trainer" in get_type_hints(schema):
        return f" (a name of Lightning's; here: {OF_LIGHTNING[option]})"
    for corpus, kind in OWN_OPTIONS.items() if group == "data" else ():
        if option in kind.__annotations__:
            return f", it is of data={corpus}"
    names = []
    for name, kind in get_type_hints(schema).items():
        inner = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names += [name, *(f"{name}.{field.name}" for field in inner)]
    names += [f"variant.{name}" for name in _options_of_variant()]
    same_end = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    near = same_end or difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else " (--help lists them)"


def _options_of_variant() -> list[str]:
    """Return the names of the options of the variant that was chosen."""
    variant = next((word.removeprefix("variant=") for word in sys.argv if word.startswith("variant=")), "")
    file = CONF / "variant" / f"{variant}.yaml"
    options = OmegaConf.load(file).variant if file.is_file() else CHOICES.get(("variant", variant), {})
    return [str(name) for name in options]


def _missing_choice(path: str, options: Sequence[str]) -> str:
    """Return the error of a group's choice that does not exist; the options are Hydra's, own files included."""
    group, _, choice = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    if choice in EXTRAS:
        return f"{group}={choice}: needs pip install 'txl_lightning[{EXTRAS[choice]}]'"
    own = options if "/" not in choice else ()
    custom = f", or {of_a_file()}" if group in ("variant", "data", "encoding") else ""
    return f"{group}={choice}: must be one of {', '.join(choices_of(group, own=own))}{custom}"


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
