"""Multiruns of a training that takes a second, in this process or as a command."""

import json
from pathlib import Path
from typing import Any

from tests.training.small_run import TEXT, TINY

SHORT = ("trainer.max_steps=6", "trainer.val_every_n_steps=3", "evaluation.max_segments=2")


def words(directory: Path, *arguments: str) -> list[str]:
    """Return the words of `txl train -m` on a small text; its folder is `sweep`."""
    directory.mkdir(exist_ok=True)
    (directory / "text.txt").write_text(TEXT)
    return [
        "train",
        "-m",
        *TINY,
        *SHORT,
        f"data.path={directory}/text.txt",
        f"data.cache_dir={directory.parent}/cache",
        f"hydra.sweep.dir={directory}/sweep",
        *arguments,
    ]


def written(directory: Path) -> dict[str, int]:
    """Return when the result of each job was written."""
    times = {}
    for path in directory.glob("sweep/*/metrics.json"):
        times[path.parent.name] = path.stat().st_mtime_ns
    return times


def results(directory: Path) -> dict[str, Any]:
    """Return `multirun.json`."""
    content: dict[str, Any] = json.loads((directory / "sweep/multirun.json").read_text())
    return content
