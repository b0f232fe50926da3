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
    """The whole files of all runs that were logged from this run directory, the oldest first.

    W&B still writes after a run's end: on a busy machine for seconds.
    """
    files, deadline = sorted(directory.glob("wandb/offline-run-*/run-*.wandb")), time.monotonic() + 60
    while not all(map(_has_ended, files)):
        assert time.monotonic() < deadline, files
        time.sleep(0.1)
    return files


def records(run: Path) -> list[dict[str, Any]]:
    """Every record of a run."""
    return [json.loads(line) for line in _inspect(run).splitlines()]


def summary(run: Path) -> dict[str, Any]:
    """Name, tags, configuration and summary of a run as W&B would show them."""
    return json.loads(_inspect(run, "--summary"))


def history(run: Path, metric: str) -> list[dict[str, Any]]:
    """The rows of a curve."""
    rows = [record["history"]["item"] for record in records(run) if record["type"] == "history"]
    return [row for row in rows if metric in row]


def artifacts(run: Path) -> dict[str, dict[str, Any]]:
    """Return the last artifact of each type."""
    return {record["artifact"]["type"]: record["artifact"] for record in records(run) if record["type"] == "artifact"}


def _has_ended(run: Path) -> bool:
    command = [WANDB, "leet", "inspect", "--json", str(run)]
    read = subprocess.run(command, capture_output=True, text=True)  # which fails within a record that is being written
    return not read.returncode and any(json.loads(line)["type"] == "exit" for line in read.stdout.splitlines())


@cache
def _inspect(run: Path, *arguments: str) -> str:
    command = [WANDB, "leet", "inspect", *arguments, "--json", str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
