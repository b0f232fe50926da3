"""JSON Lines file with one line per measurement of a run; a resumed run appends to it."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_lightning.files import write_text


class CurveFile:
    """Lines of JSON, each with the number of `steps` after which it was measured.

    A failed write is reported on stderr and does not end the training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop later lines: a run resumed at `step` in the same directory measures them again."""
        self.keep(lambda row: row["steps"] <= step)

    def keep(self, condition: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Drop the lines whose row does not meet a condition, and half a line of a killed run; return the others."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = [(line, json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        kept = [(line, row) for line, row in rows if condition(row)]
        if (kept_text := "".join(line for line, _ in kept)) != text:
            self._report_failure(lambda: write_text(self.path, kept_text))
        return [row for _, row in kept]

    def append(self, row: dict[str, Any]) -> None:
        """Append one line."""
        self._report_failure(lambda: append_line(self.path, json.dumps(row)))

    def _report_failure(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            print(f"could not write {self.path.name}: {error}; training continues", file=sys.stderr, flush=True)


def append_line(path: Path, line: str) -> None:
    """Append a whole line, or nothing.

    Raises:
        OSError: the disk is full; the file is unchanged.
    """
    data = f"{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if file.write(data) < len(data):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
