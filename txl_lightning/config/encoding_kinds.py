"""Properties of encodings by name, of the package and of a user's files (see `guests`).

`txl_lightning.model.encodings`, which needs torch, fills `KINDS` when an encoding is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txl_lightning.guests import Guests


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


KINDS: Guests[EncodingKind] = Guests("encoding", "txl_lightning.model.encodings")


def kind_named(name: str) -> EncodingKind:
    """Return the properties of an encoding.

    Raises:
        OptionError: there is no encoding of this name, or a file of guests cannot be imported.
    """
    return KINDS.named(name)
