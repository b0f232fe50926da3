"""Jobs of a multirun in its folder: identity, state and result, from which a multirun started again continues.

A job is known by its resolved options, not by its number; `multirun_job.json` in its folder holds them. The job is
finished once `metrics.json` is there, which a training writes last.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.schemas import flat
from txl_lightning.errors import UserError
from txl_lightning.files import write_json

RECORD, RESULT, STARTED = "multirun_job.json", "metrics.json", "config.yaml"
LOCK = ".job.lock"
LOCK_SECONDS = 10.0  # jobs of a killed multirun end within a second or two
WITHOUT_INFLUENCE = (
    *("logger", "resume", "trainer.progress_bar", "trainer.progress_file"),
    *("data.root", "data.cache_dir"),
)


def identity(config: DictConfig) -> dict[str, Any]:
    """Return all resolved options of a job by dotted name, without those that only say how and where it runs."""
    nodes = {str(name): config[name] for name in config if name != "hydra"}
    options = {n: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for n, v in nodes.items()}
    return {name: value for name, value in json.loads(json.dumps(flat(options))).items() if has_influence(name)}


def has_influence(option: str) -> bool:
    """Return whether a dotted option is part of a job's identity."""
    return not any(option == free or option.startswith(f"{free}.") for free in WITHOUT_INFLUENCE)


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the first option that differs, such as `seed=1, not 2`."""
    name = next(name for name in (*now, *before) if now.get(name) != before.get(name))
    return f"{name}={before.get(name)}, not {now.get(name)}"


@dataclass(frozen=True)
class JobFolder:
    """Folder of one job."""

    path: Path

    @property
    def record(self) -> dict[str, Any] | None:
        """Content of `multirun_job.json`: objective, overrides, options and the error of a failed job; else None."""
        return self._content(RECORD)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """Content of `metrics.json`; None before the job has finished."""
        return self._content(RESULT)

    def _content(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return None

    @property
    def value(self) -> float | None:
        """Objective of a finished job; None for any other."""
        record, metrics = self.record, self.metrics
        return None if record is None or metrics is None else metrics.get(record["objective"])

    def begin(self, objective: str, overrides: Collection[str], options: Mapping[str, Any]) -> None:
        """Write `multirun_job.json` before the job starts, or starts again.

        Raises:
            UserError: the folder holds another job.
        """
        before = self.record
        if before is None and (self.path / STARTED).exists():
            raise UserError(f"{self.path} holds a run that is no job of this multirun: choose another hydra.sweep.dir")
        if before is not None and before["options"] != options:
            other = difference(options, before["options"])
            raise UserError(f"{self.path} holds another job ({other}): choose another hydra.sweep.dir")
        self.path.mkdir(parents=True, exist_ok=True)
        kept = list(overrides) if before is None else before["overrides"]
        write_json(self.path / RECORD, {"objective": objective, "overrides": kept, "options": dict(options)})

    def fail(self, error: str) -> None:
        """Add the error of a job that failed to `multirun_job.json`, unless the disk is full."""
        with suppress(OSError):
            write_json(self.path / RECORD, {**(self.record or {}), "error": error})

    @property
    def started(self) -> bool:
        """Whether a training began here. It writes this file after all of its processes have met."""
        return (self.path / STARTED).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the job's lock, which ends with the process; a file system without locks is used without one.

        Raises:
            UserError: another process still holds it after `LOCK_SECONDS`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise UserError(f"{self.path}: another process runs this job") from error
                    time.sleep(0.1)
                    continue
                except OSError:
                    pass
                break
            yield


def is_first_task() -> bool:
    """Return whether this process is the first of its job; SLURM starts the task of a job once for each rank."""
    return os.environ.get("SLURM_PROCID", "0") == "0"


def job_folders(directory: Path) -> list[JobFolder]:
    """Return the folders of all jobs of a multirun, in order of their numbers."""

    def found(folder: Path) -> Iterator[JobFolder]:
        for path in folder.iterdir():
            if path.is_dir():
                yield from (JobFolder(path),) if (path / RECORD).is_file() else found(path)

    folders = found(directory) if directory.is_dir() else ()
    return sorted(folders, key=lambda job: (not job.path.name.isdigit(), job.path.name.zfill(9)))


class JobPlaces:
    """Choice of a folder for each job of a multirun: the one that it ran in before, or a free one.

    Args:
        directory: folder of the multirun.
        n_jobs: number of jobs so far; folders for jobs whose number is taken by another job come after them.
    """

    def __init__(self, directory: Path, n_jobs: int) -> None:
        self.directory, self.n_jobs = directory, n_jobs
        self.records = {job.path: job.record or {} for job in job_folders(directory)}
        self.given: set[Path] = set()

    def choose(self, wanted: Path, options: Mapping[str, Any]) -> Path:
        """Return the folder of a job.

        Args:
            wanted: folder by the job's number.
            options: the job's `identity`.
        """
        same = [path for path, record in self.records.items() if record.get("options") == options]
        for path in sorted(same, key=lambda path: path != wanted):
            if path not in self.given:
                break
        else:
            path = wanted
            if (path in self.records or path in self.given) and path.parent == self.directory:
                paths = (self.directory / str(number) for number in count(self.n_jobs))
                path = next(path for path in paths if not path.exists() and path not in self.given)
        self.given.add(path)
        return path
