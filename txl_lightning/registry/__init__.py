"""Guests: encodings, variants, corpora and measurements by name, a user's own among them.

    TXL_GUESTS=examples/layer_scale.py txl train variant=layer_scale

The variable holds files (`….py`) or importable modules, separated by commas. Importing one registers its guests
(`register_encoding`, `register_variant`, `register_corpus`, `register_measurement`). Configs and
checkpoints hold only names, so that loading someone else's checkpoint never runs code that came with it. Child
processes (multiruns, several devices) inherit the variable.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from txl_lightning.errors import OptionError, require

OWN = "txl_lightning.registry.own."  # before the names of modules that are files
VARIABLES = ("TXL_GUESTS", "TXL_ENCODINGS")  # the second is the name up to 0.4.0
CHOICES: dict[tuple[str, str], dict[str, Any]] = {}  # by group and name: what Hydra composes for GROUP=NAME

T = TypeVar("T")


class Guests(dict[str, T]):
    """Guests of one kind by name.

    Args:
        group: group of Hydra's, which names one.
        homes: modules that register those of the package; `{}` stands for the name that is asked for.
    """

    def __init__(self, group: str, *homes: str) -> None:
        super().__init__()
        self.group, self.homes = group, homes

    def add(self, name: str, guest: Any, choice: dict[str, Any]) -> None:
        """Register a class or function under a name; `choice` is what GROUP=NAME gives beside the name.

        Raises:
            OptionError: another one has the name.
        """
        if guest.__module__.startswith(OWN) or not guest.__module__.startswith("txl_lightning."):
            self._import_home(name)
        known, new = (f"{made.__module__}.{made.__qualname__}" for made in (self.get(name, guest), guest))
        # A notebook cell that runs again defines the class again.
        require(known == new, "name", name, f"is the name of another {self.group}, {known}")
        self[name], CHOICES[self.group, name] = guest, {"name": name, **choice}

    def named(self, name: str) -> T:
        """Return a guest.

        Raises:
            OptionError: none has this name, or a file of the variable cannot be imported.
        """
        if name not in self:
            self._import_home(name)
            load_guests()
        known = f"one of {', '.join(self)}, or " if self else ""
        require(name in self, self.group, name, f"must be {known}{of_a_file()}")
        return self[name]

    def _import_home(self, name: str) -> None:
        module = name.replace("-", "_")
        for home in self.homes if module.isidentifier() else ():
            if importlib.util.find_spec(home.format(module)):
                importlib.import_module(home.format(module))


def of_a_file() -> str:
    """Return how a name can be one of a user's file, for errors."""
    given = ",".join(filter(None, map(os.environ.get, VARIABLES)))
    return f"one that a file in the variable {VARIABLES[0]} registers ({given or 'not set'})"


def load_guests() -> None:
    """Import the files and modules that the variable names, each once in a process.

    Raises:
        OptionError: one cannot be imported; names the variable.
    """
    for variable in VARIABLES:
        for place in filter(None, map(str.strip, os.environ.get(variable, "").split(","))):
            try:
                _import_file(place) if place.endswith(".py") else importlib.import_module(place)
            except Exception as error:  # user code may raise anything
                reason = f"cannot be imported: {type(error).__name__}: {error}"
                raise OptionError(variable, place, " ".join(reason.split())) from error


def _import_file(place: str) -> None:
    """Import a file once, as a module whose name no import statement can have."""
    path = Path(place).expanduser().resolve()
    if (name := OWN + str(path).replace(".", ":")) not in sys.modules:
        code, module = compile(path.read_bytes(), path, "exec", dont_inherit=True), ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # before it runs: dataclasses look it up
        try:
            exec(code, vars(module))
        except BaseException:
            del sys.modules[name]
            raise
