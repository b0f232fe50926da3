"""Read offline runs of Weights & Biases from their files, after the runs have ended."""

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

WANDB = str(Path(sys.executable).parent / "wandb")


def run_files(directory: Path) -> list[Path]:
    """Return the complete files of all runs that were logged from a run directory, oldest first.

    W&B still writes after a run's end: on a busy machine for seconds.
    """
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    deadline = time.monotonic() + 60
    for file in files:
        while '"type":"exit"' not in _inspect(file).replace(" ", ""):
            assert time.monotonic() < deadline, file
            time.sleep(0.1)
    return files


@cache
def records(run: Path) -> list[dict[str, Any]]:
    """Return every record of a run."""
    return [json.loads(line) for line in _inspect(run).splitlines()]


def summary(run: Path) -> dict[str, Any]:
    """Return name, tags, configuration and summary of a run as W&B would show them."""
    return json.loads(_inspect(run, "--summary"))


def history(run: Path, metric: str) -> list[dict[str, Any]]:
    """Return the rows of a curve."""
    rows = []
    for record in records(run):
        if record["type"] == "history" and metric in record["history"]["item"]:
            rows.append(record["history"]["item"])
    return rows


def artifacts(run: Path) -> dict[str, dict[str, Any]]:
    """Return the last artifact of each type."""
    last = {}
    for record in records(run):
        if record["type"] == "artifact":
            last[record["artifact"]["type"]] = record["artifact"]
    return last


def _inspect(run: Path, *arguments: str) -> str:
    """Return what W&B reads of a file; nothing while a record is being written."""
    command = [WANDB, "leet", "inspect", "--json", *arguments, str(run)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return ""
    return done.stdout
