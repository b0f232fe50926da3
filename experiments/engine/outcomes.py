"""What the jobs left."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.engine.jobs import Job
from txl_lightning.errors import UserError


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
