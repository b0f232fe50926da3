"""JSON Lines file with one line per measurement of a run; a resumed run appends to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class CurveFile:
    """Lines of JSON, each with the number of `steps` after which it was measured.

    A failed write is reported on stderr and does not end the training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop later lines: a run resumed at `step` in the same directory measures them again."""
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            complete = [line for line in lines if line.endswith("}\n")]  # a killed run may leave half a line
            self._write("".join(line for line in complete if json.loads(line)["steps"] <= step), "w")

    def append(self, row: dict[str, Any]) -> None:
        """Append one line."""
        self._write(json.dumps(row) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(text)
        except OSError as error:
            print(f"could not write {self.path.name}: {error}; training continues", file=sys.stderr, flush=True)
