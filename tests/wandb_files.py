"""Read offline runs of Weights & Biases from their files, after the runs have ended."""

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

INSPECT = (str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json")


def run_files(directory: Path) -> list[Path]:
    """Return the complete files of all runs that were logged from a run directory, oldest first.

    W&B still writes after a run's end: on a busy machine for seconds.
    """
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    deadline = time.monotonic() + 60
    for file in files:
        while not _has_ended(file):
            assert time.monotonic() < deadline, file
            time.sleep(0.1)
    return files


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


def _has_ended(run: Path) -> bool:
    done = subprocess.run([*INSPECT, str(run)], capture_output=True, text=True)
    if done.returncode != 0:  # a record is being written
        return False
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    return "exit" in kinds


@cache
def _inspect(run: Path, *arguments: str) -> str:
    command = [*INSPECT, *arguments, str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
