"""Properties of encodings by name, and the import of custom ones named in the variable TXL_ENCODINGS.

    TXL_ENCODINGS=examples/t5.py txl train encoding.name=t5

The variable holds files (`….py`) or importable modules, separated by commas. Importing one registers its encodings
(`register_encoding`). Configs and checkpoints hold only the name of an encoding, so that loading someone else's
checkpoint never runs code that came with it. Child processes (multiruns, several devices) inherit the variable.

This module imports nothing of the model: `txl_lightning.model.encodings` fills `KINDS` when it is imported.
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
    """Properties of an encoding that other code asks for, as given to `model.encodings.register_encoding`.

    Args:
        terms: its terms of the score, out of (a)-(d).
        absolute: whether its positions count within a segment, hence cannot exceed the trained length.
        projects: whether every layer has a matrix W_{k,R} for `LayerPositions.sinusoids_SD`.
        table: rows of its trained table: one per distance (`distances`: segment, extended context and memory) or
            one per position (`positions`: segment and extended context); None without a table.
        extrapolates: whether evaluation leaves distances beyond training's as they are, instead of clamping them.
        rotates: whether queries and keys are rotated (`Encoding.angles`): no `clamp_len`.
    """

    terms: str = "a"
    absolute: bool = False
    projects: bool = False
    table: Literal["distances", "positions"] | None = None
    extrapolates: bool = False
    rotates: bool = False


KINDS: dict[str, EncodingKind] = {}  # by name; filled by register_encoding


def kind_named(name: str) -> EncodingKind:
    """Return the properties of an encoding; if it is not registered, first import the modules in TXL_ENCODINGS.

    Raises:
        OptionError: there is no encoding of this name, or a module in the variable cannot be imported.
        RuntimeError: the calling code has not imported `txl_lightning.model.encodings`.
    """
    if not KINDS:
        raise RuntimeError("no encoding is registered yet: import txl_lightning.model.encodings before asking for one")
    if name not in KINDS:
        for place in filter(None, os.environ.get(VARIABLE, "").split(",")):
            _import_encodings(place.strip())
    custom = f"or one that a file in the variable {VARIABLE} registers ({os.environ.get(VARIABLE) or 'not set'})"
    require(name in KINDS, "encoding", name, f"must be one of {', '.join(KINDS)}, {custom}")
    return KINDS[name]


def _import_encodings(place: str) -> None:
    is_file = place.endswith(".py")
    require(not is_file or Path(place).is_file(), VARIABLE, place, "no such file")
    try:
        if is_file:
            _import_file(Path(place).resolve())
        else:
            importlib.import_module(place)
    except Exception as error:  # user code may raise anything
        raise OptionError(VARIABLE, place, f"cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    """Import a file once, as a module whose name no import statement can have."""
    name = f"txl_encodings:{path}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)  # before the module runs: dataclasses look it up
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise
