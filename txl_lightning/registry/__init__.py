"""Guests: encodings, variants, corpora and measurements by name, including a user's.

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
from contextlib import suppress
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
        if guest.__module__.startswith(OWN) or not guest.__module__.startswith("txl_lightning."):
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
        with suppress(ModuleNotFoundError):
            importlib.import_module(self.home.format(name))


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
