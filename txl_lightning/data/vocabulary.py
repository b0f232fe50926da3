"""Symbols and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from txl_lightning.errors import UserError

Level = Literal["byte", "char"]
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """Bytes (the number is the byte's value) or characters (the number is the place in `symbols`).

    Args:
        level: what one token is.
        symbols: the characters in the order of their numbers; empty for bytes.
    """

    level: Level
    symbols: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 256 if self.level == "byte" else len(self.symbols)

    @classmethod
    def of_characters(cls, text: str) -> Vocabulary:
        """All characters of a training text by code point, after an entry for those it lacks."""
        return cls("char", (UNKNOWN, *sorted(set(text))))

    def encode(self, content: bytes) -> np.ndarray:
        """Token numbers of UTF-8 text, or of any bytes at byte level, in the smallest fitting type.

        Raises:
            UserError: the vocabulary is of characters and the bytes are not UTF-8.
        """
        if self.level == "byte":
            return np.frombuffer(content, dtype=np.uint8)
        code_points = np.frombuffer(decode_text(content).encode("utf-32-le"), dtype=np.uint32)
        known = np.array([ord(symbol) for symbol in self.symbols[1:]], dtype=np.uint32)
        number_of = np.zeros(int(max(code_points.max(initial=0), known.max(initial=0))) + 1, dtype=np.int32)
        number_of[known] = np.arange(1, len(self.symbols))
        return number_of[code_points].astype(
            np.uint8 if len(self) <= 256 else np.uint16 if len(self) <= 65536 else np.int32
        )

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of token numbers; bytes that are not UTF-8 become replacement characters."""
        if self.level == "byte":
            return bytes(int(token) for token in tokens).decode("utf-8", errors="replace")
        return "".join(self.symbols[int(token)] for token in tokens)

    def state_dict(self) -> dict[str, Any]:
        """Plain containers for a checkpoint."""
        return {"level": self.level, "symbols": list(self.symbols)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Vocabulary:
        """The inverse of `state_dict`."""
        return cls(level=state["level"], symbols=tuple(state["symbols"]))


def decode_text(content: bytes) -> str:
    """UTF-8 text.

    Raises:
        UserError: naming the first byte that is not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text (byte {error.start}): characters need UTF-8, use data.level=byte") from error
