"""Guests: encodings, variants, corpora and measurements by name, including a user's.

    TXL_GUESTS=examples/layer_scale.py txl train variant=layer_scale

The variable holds files (`….py`) or importable modules, separated by commas. Importing one registers its guests
(`register_encoding`, `register_variant`, `register_corpus`, `register_measurement`). Configs and
checkpoints hold only names, so that loading someone else's checkpoint never runs code that came with it. Child
processes (multiruns, several devices) inherit the variable.

`ROWS` has the built-in `txl` commands. A new command is a module with `run`, a dataclass with its options and a row,
here or in a user's file. It needs a file in `conf/` only if its options have groups.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from txl_lightning.errors import OptionError, require

OWN = "txl_lightning.registry.own."  # prefix of the module names of files
VARIABLE = "TXL_GUESTS"
CHOICES: dict[str, dict[str, Any]] = {}  # what Hydra composes, by GROUP/NAME

T = TypeVar("T")


class Guests(dict[str, T]):
    """Guests of one kind by name.

    Args:
        group: Hydra's group that chooses one.
        home: module that registers the built-in names; `{}` stands for the requested name.
    """

    def __init__(self, group: str, home: str) -> None:
        super().__init__()
        self.group = group
        self.home = home

    def add(self, name: str, guest: Any, choice: dict[str, Any]) -> None:
        """Register a class or function under a name; `choice` is what GROUP=NAME gives beside the name.

        Raises:
            OptionError: another one has the name.
        """
        self._import_home(name)
        known = full_name(self.get(name, guest))
        # A notebook cell that runs again defines the class again.
        is_same = known == full_name(guest)
        require(is_same, "name", name, f"is the name of another {self.group}, {known}")
        self[name] = guest
        CHOICES[f"{self.group}/{name}"] = {"name": name, **choice}

    def named(self, name: str) -> T:
        """Return a guest.

        Raises:
            OptionError: unknown name, or a file in the variable cannot be imported.
        """
        if name not in self:
            self._import_home(name)
            load_guests()
        known = f"one of {', '.join(self)}, or " if self else ""
        require(name in self, self.group, name, f"must be {known}{of_a_file()}")
        return self[name]

    def _import_home(self, name: str) -> None:
        home = self.home.format(name)
        try:
            importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name not in (home, home.rpartition(".")[0]):  # a library is missing
                raise


def full_name(guest: Any) -> str:
    """Return the module and name of a class or function."""
    return f"{guest.__module__}.{guest.__qualname__}"


def of_a_file() -> str:
    """Return a hint for registering the name, for errors."""
    given = os.environ.get(VARIABLE) or "not set"
    return f"one that a file in the variable {VARIABLE} registers ({given})"


def load_guests() -> None:
    """Import the files and modules that the variable names, each once in a process.

    Raises:
        OptionError: one cannot be imported; names the variable.
    """
    for place in os.environ.get(VARIABLE, "").split(","):
        place = place.strip()
        try:
            if place.endswith(".py"):
                _import_file(place)
            elif place:
                importlib.import_module(place)
        except Exception as error:  # user code may raise anything
            reason = f"cannot be imported: {type(error).__name__}: {error}"
            raise OptionError(VARIABLE, place, " ".join(reason.split())) from error


def _import_file(place: str) -> None:
    """Import a file once, as a module whose name no import statement can have."""
    path = Path(place).expanduser().resolve()
    name = OWN + str(path).replace(".", ":")
    if name in sys.modules:
        return
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@dataclass(frozen=True)
class Command:
    """One command. Its modules are imported when it runs, so a table of commands is quick to import.

    Attributes:
        usage: words after `txl`, for the help text. The first one is the command's name.
        module: has `run(options, directory) -> list[str]`; the returned lines are printed at the end.
        options: dotted name of the options' dataclass.
        summary: the command's purpose in one line.
        resume: override that continues a stopped job, whose loss a multirun minimizes; empty if a job starts anew. Such
            a command writes its `config.yaml` itself, after its checks.
        shared_by_ranks: whether the processes that torchrun or SLURM starts run the command together.
    """

    usage: str
    module: str
    options: str
    summary: str
    resume: str = ""
    shared_by_ranks: bool = False

    @property
    def name(self) -> str:
        """Name as typed."""
        return self.usage.split()[0]

    @property
    def schema(self) -> type:
        """Dataclass with the options."""
        module, _, class_name = self.options.rpartition(".")
        return getattr(importlib.import_module(module), class_name)

    @property
    def run(self) -> Callable[[Any, Path], list[str]]:
        """The command's function: takes options and run directory, returns the lines to print."""
        return importlib.import_module(self.module).run


COMMANDS: dict[str, Command] = {}  # by name


def register_measurement(row: Command) -> None:
    """Add a command to `txl`, from the package or from a user's file.

    Raises:
        OptionError: another command has the name.
    """
    known = COMMANDS.setdefault(row.name, row)
    allowed = f"is the name of another command, in {known.module}"
    require(known.module == row.module, "name", row.name, allowed)


ROWS = (
    Command(
        "train [overrides]",
        module="txl_lightning.training.run",
        options="txl_lightning.config.schemas.Config",
        summary="train one model; -m for a multirun (txl train -m memory=on,off)",
        resume="resume=auto",
        shared_by_ranks=True,
    ),
    Command(
        "evaluate checkpoint=PATH",
        module="txl_lightning.evaluation.perplexity",
        options="txl_lightning.evaluation.options.EvaluateOptions",
        summary="loss of a checkpoint (nll, ppl, bpc, bpb), any lengths; sweep of attention lengths",
    ),
    Command(
        "recl checkpoints=[A,B,…]",
        module="txl_lightning.recl.command",
        options="txl_lightning.recl.options.ReclOptions",
        summary="relative effective context length (RECL) of several models, with gain curves",
        shared_by_ranks=True,
    ),
    Command(
        "attention checkpoint=PATH",
        module="txl_lightning.evaluation.attention",
        options="txl_lightning.evaluation.options.AttentionOptions",
        summary="attention weights of every head, averaged over a split and on a piece of text",
    ),
    Command(
        "speed",
        module="txl_lightning.evaluation.speed",
        options="txl_lightning.evaluation.options.SpeedOptions",
        summary="time per token: vanilla sliding window against state reuse (Table 9)",
    ),
    Command(
        "generate checkpoint=PATH prompt=TEXT",
        module="txl_lightning.evaluation.generate",
        options="txl_lightning.evaluation.options.GenerateOptions",
        summary="sample text from a model, shown as it is sampled; context=N continues test tokens",
    ),
    Command(
        "convert source=PATH source_format=FORMAT target=PATH target_format=FORMAT",
        module="txl_lightning.evaluation.convert",
        options="txl_lightning.evaluation.options.ConvertOptions",
        summary="convert checkpoints: original, huggingface, txl; from the TensorFlow code's too",
    ),
)
for row in ROWS:
    register_measurement(row)
