"""One line per error: the option, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Sequence
from typing import get_type_hints

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from txl_lightning.command_line import Command
from txl_lightning.command_line.multirun import JobError
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import UserError

EXPECTED = (UserError, HydraException, OmegaConfBaseException, OSError)
EXTRAS = {"optuna": "sweep", "submitit_slurm": "slurm"}  # choice of a group -> extra in pyproject.toml it needs
OF_LIBRARIES = ('Could not detect "srun"', "Only one of --run")  # in errors of submitit and Hydra without a class
HYDRA_FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun", "--info"),
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
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        needs = f"needs pip install 'txl_lightning[{EXTRAS[choice]}]'" if choice in EXTRAS else ""
        return f"{group}={choice}: {needs or 'must be one of ' + ', '.join(error.options or ())}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: must be given ({error.full_key}=…)"
    if unknown := re.match(r"Could not override '([^']+)'", str(error)):
        typed = next((word for word in sys.argv if word.startswith(f"{unknown[1]}=")), unknown[1])
        return f"{typed}: no such option{suggestion(unknown[1], schema)}"
    if not isinstance(error, (HydraException, OmegaConfBaseException)):
        return _first_line(error)
    if error.__cause__ is not None:
        return f"{_first_line(error)}: {_first_line(error.__cause__)}"
    return " ".join(str(error).split())


def refuse_words(words: Sequence[str], command: Command) -> None:
    """Refuse words that Hydra would misread, or answer on several lines: unknown flags and choices, `+option=value`.

    Args:
        words: typed after the name of the command.
        command: row of the command.

    Raises:
        UserError: a word cannot be used.
    """
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and not any(known.startswith(name) for known in HYDRA_FLAGS):  # it takes abbreviations
            option = f"{name.lstrip('-')}={value if equals else '…'}"
            raise UserError(f"{word}: no such flag; options have no dashes: {option} (--help lists them)")
        if word.startswith("+"):
            raise UserError(f"{word}: options cannot be added{suggestion(name.lstrip('+'), command.schema)}")
        if name and equals and not name.startswith("hydra") and (CONF / name).is_dir():
            _refuse_choice(name, value, command)


def _refuse_choice(group: str, value: str, command: Command) -> None:
    if value.startswith("[") and group != "experiment":  # Hydra would merge the choices, and the result is neither
        one = f"takes one choice; several need -m (a multirun): {group}={value.strip('[]')}"
        raise UserError(f"{group}={value}: {one}")
    allowed = choices(group, command)
    for choice in () if "(" in value or "$" in value else value.strip("[]").split(","):  # a sweep of Hydra
        if choice.strip("'\" ") not in (*allowed, *(["null"] if group == "experiment" else ())):
            custom = f" (a custom encoding: encoding.name={choice})" if group == "encoding" else ""
            raise UserError(f"{group}={choice}: must be one of {', '.join(allowed)}{custom}")


def choices(group: str, command: Command) -> list[str]:
    """Return the names of a group's files; experiments in `published/` are for `txl evaluate`, others for training."""
    names = sorted(path.relative_to(CONF / group).with_suffix("").as_posix() for path in (CONF / group).rglob("*.yaml"))
    of_evaluation = command.name == "evaluate"
    return [name for name in names if group != "experiment" or name.startswith("published/") == of_evaluation]


def suggestion(key: str, schema: type) -> str:
    """Return `, did you mean …?` with the option names nearest to `key`, or a hint at `--help`."""
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
