"""What the jobs left, and the cells of tables made from it."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.jobs import Job
from txl_lightning.errors import UserError

Cell = dict[str, Any] | None
Section = dict[str, Any]
DIGITS = {"bpc": 3, "ppl": 2}


@dataclass(frozen=True)
class Outcomes:
    """The files of finished jobs.

    Args:
        runs: the folder of all runs.
        figures: where the report's figures go.
    """

    runs: Path
    figures: Path

    def result(self, job: Job, file: str) -> dict[str, Any]:
        """A JSON file of a job."""
        path = self.runs / job.name / file
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        return found

    def metrics(self, job: Job) -> dict[str, Any]:
        """What a training ended with."""
        return self.result(job, "metrics.json")

    def validation(self, job: Job) -> list[dict[str, Any]]:
        """The validations of a training."""
        return [json.loads(line) for line in (self.runs / job.name / "validation.jsonl").read_text().splitlines()]

    def figure(self, job: Job, name: str, caption: str, alt: str) -> dict[str, Any]:
        """A figure that a job drew, copied to the report's: PNG and, if there is one, SVG."""
        self.figures.mkdir(parents=True, exist_ok=True)
        files: dict[str, Any] = {"svg": None}
        for suffix in ("png", "svg"):
            source = self.runs / job.name / f"{name}.{suffix}"
            if source.is_file():
                shutil.copyfile(source, self.figures / f"{job.name}_{name}.{suffix}")
                files[suffix] = f"{self.figures.name}/{job.name}_{name}.{suffix}"
        return {**files, "caption": caption, "alt": alt}


def unit_of(metrics: Mapping[str, Any]) -> str:
    """`bpc`, or `ppl` for words."""
    return "bpc" if "test/bpc" in metrics else "ppl"


def unit_in_words(unit: str, level: str) -> str:
    """As an axis names it."""
    return "perplexity" if unit == "ppl" else "bits per byte" if level == "byte" else "bits per character"


def text(words: str) -> Cell:
    """A cell of words."""
    return {"text": words}


def number(value: float | None, digits: int, **more: Any) -> Cell:
    """A cell of one number; None is an empty cell."""
    return None if value is None else {"value": value, "digits": digits, **more}


def over_seeds(values: Mapping[Any, float], digits: int) -> Cell:
    """Mean over seeds and, of two or more, its standard error: s / √n."""
    numbers = list(values.values())
    cell: dict[str, Any] = {"value": statistics.mean(numbers), "digits": digits}
    if len(numbers) > 1:
        cell["standard_error"] = statistics.stdev(numbers) / math.sqrt(len(numbers))
    return {**cell, "by_seed": {str(seed): value for seed, value in values.items()}}


def column(key: str, title: str, of: str, unit: str | None = None) -> dict[str, Any]:
    """A column of a table; `of` is label, ours or paper."""
    return {"key": key, "title": title, "of": of, "unit": unit}
