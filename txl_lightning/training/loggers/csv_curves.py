"""Curves of a training run in `metrics.csv`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

from txl_lightning.training.lightning_internals import set_csv_rows


def start(directory: Path, step: int) -> CSVLogger:
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
