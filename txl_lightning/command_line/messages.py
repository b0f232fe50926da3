"""One line per error: the option, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Sequence
from typing import get_type_hints

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.config.schemas import CONF
from txl_lightning.errors import Stopped, UserError
from txl_lightning.jobs.multirun import JobError

EXPECTED = (UserError, HydraException, OmegaConfBaseException, OSError)
EXTRAS = {"optuna": "sweep", "submitit_slurm": "slurm"}  # choice of a group -> extra in pyproject.toml it needs
NO_CHOICE = "Config group override must be a string or a list"  # raised by Hydra as a ValueError
NO_SLURM = 'Could not detect "srun"'  # raised by submitit as a RuntimeError
TWO_MODES = "Only one of --run"  # raised by Hydra as a ValueError
HYDRA_FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun", "--info"),
)


def exit_status(error: BaseException) -> int:
    """Return 2 for bad input and, as a shell does, 128 + signal for a run that a signal stopped."""
    return 128 + error.signum if isinstance(error, Stopped) else 2


def is_expected(error: BaseException) -> bool:
    """Return whether the user can act on an error; any other error is a defect and is shown with its traceback."""
    return isinstance(error, EXPECTED) or any(text in str(error) for text in (NO_CHOICE, NO_SLURM, TWO_MODES))


def describe(error: BaseException, schema: type) -> str:
    """Return `one_line` of an expected error, and type and first line of any other."""
    if isinstance(error, (*EXPECTED, JobError)):
        return one_line(error, schema)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def one_line(error: BaseException, schema: type) -> str:
    """Reduce an error of ours, of Hydra or of OmegaConf to one line.

    Args:
        error: its causes are read too.
        schema: dataclass of the command's options, to suggest names from.
    """
    if isinstance(error, OSError) and error.filename:
        return _unusable_file(str(error.filename), error.strerror)
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    messages = [str(error)]
    cause = error.__cause__
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(messages)
    if several := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{several[1]}: several values need -m (a multirun), or brackets if the option is a list"
    if NO_SLURM in text:
        return "hydra/launcher=slurm: needs srun and sbatch, which are not on this machine"
    if NO_CHOICE in text:
        return _no_choice()
    if missing := re.search(r"missing mandatory value: (\S+)", text):
        return f"{missing[1]}: must be given ({missing[1]}=…)"
    wrong = re.search(r"In 'experiment/([^']+)': (?:ConfigKeyError|Could not override)", text)
    if wrong and wrong[1].startswith("published/") != (schema.__name__ == "EvaluateOptions"):
        return f"experiment={wrong[1]}: published/… is for txl evaluate, the other experiments for txl train"
    if unknown := re.search(r"Could not override '([^']+)'", text):
        typed = next((word for word in sys.argv if word.startswith(f"{unknown[1]}=")), unknown[1])
        return f"{typed}: no such option{suggestion(unknown[1], schema)}"
    if choice := re.search(
        r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*?)\s+Config search", text, re.S
    ):
        return _unknown_choice(choice[1], choice[2], choice[3].split())
    if single := re.search(r"Error merging override (([^=\s]+)=(\S+))\s+.* is not a ListConfig", text):
        return f"{single[1]}: must be a list: '{single[2]}=[{single[3]}]'"
    if value := re.search(r"Error merging override (\S+)\s+(.*)", text):
        return f"{value[1]}: {value[2]}"
    return text.strip().splitlines()[0]


def refuse_dashes(words: Sequence[str], schema: type) -> None:
    """Refuse `--option=value` and unknown flags, which Hydra's parser would answer with its own usage.

    Args:
        words: typed after the name of the command.
        schema: dataclass of the command's options.

    Raises:
        UserError: an option has dashes, or a flag is none of Hydra's.
    """
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-")
        if word.startswith("-") and name in _option_names(schema):
            raise UserError(f"{word}: options have no dashes: {name}={value if equals else '…'}")
        if word.startswith("--") and not any(known.startswith(flag) for known in HYDRA_FLAGS):  # it takes abbreviations
            raise UserError(f"{word}: no such flag; options are written option=value (--help lists them)")


def refuse_several_choices(words: Sequence[str]) -> None:
    """Refuse `group=[one,other]`: Hydra would merge the two, and the result is neither. Experiments may be merged.

    Raises:
        UserError: a word gives a group of `conf/` a list.
    """
    for word in words:
        group, _, value = word.partition("=")
        if value.startswith("[") and group not in ("", "experiment") and (CONF / group).is_dir():
            raise UserError(f"{word}: takes one choice; several need -m (a multirun): {group}={value.strip('[]')}")


def suggestion(key: str, schema: type) -> str:
    """Return `, did you mean …?` with the option names nearest to `key`, or a hint at `--help`."""
    names = _option_names(schema)
    same_end = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    near = same_end or difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else " (--help lists them)"


def _unreadable(word: str) -> str:
    """Return the error of a word that Hydra's grammar cannot read."""
    name, equals, value = word.partition("=")
    if not name or not equals:
        return f"{word}: must be option=value (--help lists the options; a value with spaces needs quotes)"
    if value.startswith(("[", "{", "'", '"')):
        return f"{word}: a bracket or a quote is missing"
    return f"{word}: cannot be parsed; a value with special signs needs quotes: \"{name}='{value}'\""


def _unknown_choice(group: str, choice: str, options: list[str]) -> str:
    if extra := EXTRAS.get(choice):
        return f"{group}={choice}: needs pip install 'txl_lightning[{extra}]'"
    allowed = ", ".join(option for option in options if not option.endswith("schema"))
    custom = f" (a custom encoding: encoding.name={choice})" if group == "encoding" else ""
    return f"{group}={choice}: must be one of {allowed}{custom}"


def _unusable_file(name: str, problem: str | None) -> str:
    """Return the error of a file or folder, with the option that names it, or a folder above or below it."""
    for word in sys.argv:
        path = word.partition("=")[2]
        if path and (path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/")):
            return f"{word}: cannot be used ({name}: {problem})"
    return f"{name}: {problem}"


def _no_choice() -> str:
    """Return the error of a group whose value is a number or null: the word that was typed, and the choices."""
    typed = [word.partition("=") for word in sys.argv if "=" in word]
    for group, _, value in typed:
        options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        if group and options and not set(value.split(",")) <= set(options):
            return _unknown_choice(group, value, options)
    return _unreadable(next(("".join(word) for word in typed if not word[0]), "override"))


def _option_names(schema: type) -> list[str]:
    names = []
    for name, kind in get_type_hints(schema).items():
        inner = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names += [name, *(f"{name}.{field.name}" for field in inner)]
    return names
