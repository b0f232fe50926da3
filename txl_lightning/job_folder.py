"""Job folders: what a job is, what it left, and whether its folder is the right one.

A job has an identity: everything that its numbers depend on. Its folder holds a lock, the record `job.json` with the
identity under `options`, and the result, written last. A program that starts jobs again compares identities and runs
only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import flat
from txl_lightning.files import LOCK, write_json

RECORD = "job.json"
STARTED = "config.yaml"  # a training writes it once all its processes have met

# Options that say how and where a job runs and what it leaves. They change no number.
WITHOUT_INFLUENCE = (
    "logger",
    "tags",
    "task_name",
    "resume",
    "ckpt_path",
    "checkpoint.every_n_steps",
    "data.root",
    "data.cache_dir",
    "trainer.progress_bar",
    "trainer.log_every_n_steps",
)
# Options in the group `data` that do not change the text.
NOT_OF_THE_TEXT = ("data.batch_size", "data.segment_len", "data.seed", "data.random_start")


@dataclass(frozen=True)
class JobFolder:
    """Folder for one job.

    Args:
        path: the folder.
        result_file: the file that the job writes last.
    """

    path: Path
    result_file: str = "metrics.json"

    @property
    def record(self) -> dict[str, Any]:
        """The record's content; {} without one."""
        return read_json(self.path / RECORD)

    @property
    def result(self) -> dict[str, Any]:
        """The result's content; {} before the job has finished, or if a full disk has cut it off."""
        return read_json(self.path / self.result_file)

    @property
    def options(self) -> dict[str, Any]:
        """Identity in the record; {} without one."""
        return self.record.get("options", {})

    def write(self, **record: Any) -> None:
        """Write the record."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / RECORD, record)

    def clear(self) -> None:
        """Delete everything except the lock that this process holds."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()

    def fail(self, error: str) -> None:
        """Add the error that ended the job, in one line, to the record, if there is one."""
        record = self.record
        if record:
            record["error"] = error
            with suppress(OSError):  # a full disk
                self.write(**record)


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file; {} if there is none, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return {}


def checksum(record: Mapping[str, Any]) -> str:
    """Return an identity's SHA-256, computed from JSON."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def identity(options: dict[str, Any]) -> dict[str, Any]:
    """Return the nested options of a job as JSON values by dotted name, without `WITHOUT_INFLUENCE`."""
    values: dict[str, Any] = json.loads(json.dumps(flat(options)))
    for name in list(values):
        if _is_in(name, WITHOUT_INFLUENCE):
            del values[name]
    return values


def options_of_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an identity that decide a job's tokens."""
    chosen = {}
    for name, value in options.items():
        if name.startswith("data.") and not _is_in(name, NOT_OF_THE_TEXT):
            chosen[name] = value
    return chosen


def _is_in(name: str, groups: tuple[str, ...]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def job_folders(root: Path) -> list[JobFolder]:
    """Return a multirun's job folders, ordered by number."""
    folders = [record.parent for record in root.rglob(RECORD)]
    folders.sort(key=lambda path: (not path.name.isdigit(), path.name.zfill(9)))
    return [JobFolder(path) for path in folders]


def choose_folder(
    root: Path,
    wanted: Path,
    options: Mapping[str, Any],
    taken: set[Path],
) -> Path:
    """Choose the folder of a job of a multirun: the one in which it ran before, the wanted one, or the next free one.

    Args:
        root: the multirun's folder.
        wanted: folder by the job's number.
        options: the job's identity.
        taken: folders of other jobs in the same call.
    """
    jobs = job_folders(root)
    for job in (JobFolder(wanted), *jobs):
        if job.options == options and job.path not in taken:
            return job.path
    taken = taken.union(job.path for job in jobs)
    number = 0
    while wanted in taken or (wanted / STARTED).exists():
        wanted = root / str(number)
        number += 1
    return wanted
