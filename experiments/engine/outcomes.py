"""Result files of finished jobs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.engine.jobs import Job
from txl_lightning.errors import UserError

Unit = Literal["bpc", "ppl"]


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training: its metrics and the unit of its losses.

    Args:
        metrics: content of `metrics.json`.
    """

    metrics: dict[str, Any]

    @property
    def level(self) -> str:
        """Level of the tokens: byte, char, word or bpe."""
        return str(self.metrics["corpus"]["level"])

    @property
    def unit(self) -> Unit:
        """`ppl` (perplexity) or `bpc` (bits per character or byte), by the level."""
        return "ppl" if self.level in ("word", "bpe") else "bpc"

    @property
    def corpus(self) -> str:
        """Name of the corpus."""
        return str(self.metrics["corpus"]["name"])

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return int(self.metrics["parameters"])

    @property
    def steps(self) -> int:
        """Training steps."""
        return int(self.metrics["steps"])

    @property
    def tokens(self) -> int:
        """Tokens read in training."""
        return int(self.metrics["tokens"])

    def loss(self, split: Literal["val", "test"] = "test") -> float:
        """Return the loss of the best weights on a split, in `unit`."""
        return float(self.metrics[f"{split}/{self.unit}"])


@dataclass(frozen=True)
class Outcomes:
    """Access to the result files of finished jobs.

    Args:
        runs: folder of all runs.
        figures: folder of the report's figures.
        jobs: all jobs of the reproduction; the spread between seeds is pooled over them.
    """

    runs: Path
    figures: Path
    jobs: tuple[Job, ...] = ()

    @property
    def unit(self) -> Unit:
        """Unit of the losses of the reproduction's trainings."""
        return next(self.training(job).unit for job in self.jobs if job.command == "train")

    def result(self, job: Job, file: str) -> dict[str, Any]:
        """Read a JSON file of a job.

        Raises:
            UserError: the file is missing or damaged.
        """
        return read_json(self.runs / job.name / file)

    def training(self, job: Job) -> TrainingResult:
        """Return the result of a training."""
        return TrainingResult(self.metrics(job))

    def metrics(self, job: Job) -> dict[str, Any]:
        """Read `metrics.json` of a training."""
        return self.result(job, "metrics.json")

    def validation(self, job: Job) -> list[dict[str, Any]]:
        """Read all validations of a training, in order."""
        return [json.loads(line) for line in (self.runs / job.name / "validation.jsonl").read_text().splitlines()]

    def figure(self, job: Job, name: str, caption: str, alt: str) -> dict[str, Any]:
        """Copy a figure of a job (PNG and, if there is one, SVG) into the report's figures and describe it."""
        self.figures.mkdir(parents=True, exist_ok=True)
        files: dict[str, Any] = {"svg": None}
        for suffix in ("png", "svg"):
            source = self.runs / job.name / f"{name}.{suffix}"
            if source.is_file():
                shutil.copyfile(source, self.figures / f"{job.name}_{name}.{suffix}")
                files[suffix] = f"{self.figures.name}/{job.name}_{name}.{suffix}"
        return {**files, "caption": caption, "alt": alt}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds no JSON object")
    return found
