"""Encodings that a user adds without editing the package: found where TXL_ENCODINGS says, and nowhere else.

    TXL_ENCODINGS=examples/alibi.py txl train encoding.name=alibi

The variable holds files (`….py`) or importable modules, separated by commas; importing one registers its
encodings (`register_encoding`). A configuration, and so a checkpoint, holds no more than the name: what is
imported is the user's choice alone, and loading a stranger's checkpoint runs no code that it brought along.
The variable reaches the processes of a multirun and of several devices, as variables do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from txl_lightning.errors import OptionError, require

VARIABLE = "TXL_ENCODINGS"


@dataclass(frozen=True)
class EncodingKind:
    """What of an encoding others need to know, without its module (`model.encodings.register_encoding`).

    Args:
        terms: which of the four terms (a)-(d) of the score it has.
        absolute: positions belong to a segment and mean nothing beyond the length that was trained.
        projects: every layer has a W_{k,R}, for `LayerPositions.sinusoids_SD`.
        table: what its trained table, if any, has a row for: `distances` (segment, extended context and
            memory) or `positions` (segment and extended context).
    """

    terms: str = "a"
    absolute: bool = False
    projects: bool = False
    table: Literal["distances", "positions"] | None = None


KINDS: dict[str, EncodingKind] = {}  # by name; filled where the encodings are registered


def kind_named(name: str) -> EncodingKind:
    """What is known of an encoding; one that is not registered is looked for where TXL_ENCODINGS says.

    Raises:
        OptionError: there is none of this name, or what the variable names cannot be imported.
    """
    if name not in KINDS:
        for place in filter(None, os.environ.get(VARIABLE, "").split(",")):
            import_place(place.strip())
    own = f"or one that a file in the variable {VARIABLE} registers ({os.environ.get(VARIABLE) or 'not set'})"
    require(name in KINDS, "encoding", name, f"must be one of {', '.join(KINDS)}, {own}")
    return KINDS[name]


def import_place(place: str) -> None:
    """Import a file or a module, once.

    Raises:
        OptionError: it is missing, or raises an error of its own.
    """
    is_file = place.endswith(".py")
    require(not is_file or Path(place).is_file(), VARIABLE, place, "no such file")
    try:
        if is_file:
            import_file(Path(place).resolve())
        else:
            importlib.import_module(place)
    except Exception as error:  # whatever the user's own code raises
        raise OptionError(VARIABLE, place, f"cannot be imported: {type(error).__name__}: {error}") from error


def import_file(path: Path) -> None:
    """Run a file as a module of its own, under a name that no import statement could mean."""
    name = f"txl_encodings:{path}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise
