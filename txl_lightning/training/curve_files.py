"""Files of curves that a resumed run continues: JSON Lines and `metrics.csv`."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

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


def csv_logger(directory: Path, step: int) -> CSVLogger:
    """Return the logger of `metrics.csv`, with the rows up to `step` that an earlier session wrote."""
    path = directory / "metrics.csv"
    rows: list[dict[str, Any]] = []
    if step and path.exists():
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            last = (reader.fieldnames or ["step"])[-1]  # None in a row that was cut short
            rows = [row for row in reader if row[last] is not None and int(row["step"]) <= step]
    logger = CSVLogger(save_dir=directory, name=None, version="")
    set_csv_rows(logger, rows)
    return logger


def set_csv_rows(logger: CSVLogger, rows: list[dict[str, Any]]) -> None:
    """Let `metrics.csv` begin with these rows (private in Lightning, which starts an empty file)."""
    logger.experiment.metrics = rows
    logger.save()
