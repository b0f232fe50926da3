"""A file with a line of JSON for every measurement of a run, which a resumed run goes on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class CurveFile:
    """Lines that know after how many `steps` they were measured.

    A full disk is reported and must not end the training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop what was measured later: a resumed run in the same directory measures it again."""
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("}\n")]  # the last may have been cut short
            self._write("".join(line for line in whole if json.loads(line)["steps"] <= step), "w")

    def append(self, row: dict[str, Any]) -> None:
        """Add a line."""
        self._write(json.dumps(row) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(text)
        except OSError as error:
            print(f"{self.path.name} could not be written: {error}; training goes on", file=sys.stderr, flush=True)
