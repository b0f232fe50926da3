"""Jobs: what a job is (its identity), and what it left (its folder with a lock, a record and a result).

A job of a multirun is known by its resolved options, not by its number; `multirun_job.json` in its folder holds them.
It is finished once `metrics.json` is there, which a training writes last. A multirun started again continues from that.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.schemas import flat, typed
from txl_lightning.errors import OptionError, UserError
from txl_lightning.files import write_json

RECORD, STARTED = "multirun_job.json", "config.yaml"
LOCK = ".lock"
LOCK_SECONDS = 10.0  # jobs of a killed runner end within a second or two

# Options that say how and where a job runs and what it leaves, and change no number.
WITHOUT_INFLUENCE = (
    *("logger", "resume", "checkpoint.every_n_steps", "data.root", "data.cache_dir"),
    *("trainer.progress_bar", "trainer.log_every_n_steps"),
)
NOT_OF_THE_TEXT = ("data.batch_size", "data.segment_len", "data.seed", "data.random_start")  # among options of `data`
# Presentation only: a change here does not make finished jobs stale.
SHOWS_ONLY = ("txl_lightning.reporting", "txl_lightning.training.loggers")
SHOWS_ONLY_NAMES = ("report", "figures")


@dataclass(frozen=True)
class JobFolder:
    """Folder of one job, or of another command that writes there.

    Args:
        path: the folder.
        record_file: name of the record.
        result_file: name of the file that the job writes last.
    """

    path: Path
    record_file: str = RECORD
    result_file: str = "metrics.json"

    @property
    def record(self) -> dict[str, Any]:
        """Content of the record, {} without one: of a multirun's job objective, overrides, options and error.

        One that was changed after `write` is none; files that this class did not write have no checksum to compare.
        """
        found = self._content(self.record_file) or {}
        written = found.pop("sha256", None)
        return found if written in (None, _checksum(found)) else {}

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of the result; None before the job has finished, or if a full disk has cut it off."""
        return self._content(self.result_file)

    def _content(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            found = json.loads((self.path / name).read_text())
            return found if isinstance(found, dict) else None
        return None

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the record, with its checksum."""
        write_json(self.path / self.record_file, {**record, "sha256": _checksum(record)})

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Hold the folder's lock, which ends with the process; a file system without locks is used without one.

        Args:
            wait: wait `LOCK_SECONDS` for a process that is about to end.

        Raises:
            UserError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCK_SECONDS * wait
        with (self.path / LOCK).open("w") as file:
            with suppress(OSError):  # of a file system without locks
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError as error:
                        if time.monotonic() > deadline:
                            held = "another command writes into this folder: choose another one, or wait for its end"
                            raise UserError(f"{self.path}: {held}") from error
                        time.sleep(0.1)
            yield

    def clear(self) -> None:
        """Delete everything but the lock, which this process holds."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()

    @property
    def value(self) -> float | None:
        """Objective of a finished job of a multirun; None for any other."""
        value = (self.result or {}).get(self.record.get("objective", ""))
        return value if isinstance(value, (float, int)) else None

    @property
    def started(self) -> bool:
        """Whether a training began here. It writes this file after all of its processes have met."""
        return (self.path / STARTED).exists()

    def begin(self, record: Mapping[str, Any]) -> None:
        """Write the record of a multirun's job before it starts; one that starts again keeps its overrides.

        Args:
            record: `objective`, the key of the result; `overrides` as typed; `options`, the job's `identity`.

        Raises:
            UserError: the folder holds another job.
        """
        before, options = self.record, record["options"]
        if not before and self.started:
            raise UserError(f"{self.path} holds a run that is no job of this multirun: choose another hydra.sweep.dir")
        if before and (found := before.get("options", {})) != options:
            other = difference(options, found)
            raise UserError(f"{self.path} holds another job ({other}): choose another hydra.sweep.dir")
        self.path.mkdir(parents=True, exist_ok=True)
        self.write({**record, "overrides": before.get("overrides", record["overrides"])})

    def add_error(self, error: str) -> None:
        """Add the error that ended a job, in one line, to its record."""
        with suppress(OSError):  # a full disk
            self.write({**self.record, "error": error})


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def job_folders(directory: Path) -> list[JobFolder]:
    """Return the folders of all jobs of a multirun, in order of their numbers."""

    def found(folder: Path) -> Iterator[JobFolder]:
        for path in folder.iterdir():
            if path.is_dir():
                yield from (JobFolder(path),) if (path / RECORD).is_file() else found(path)

    folders = found(directory) if directory.is_dir() else ()
    return sorted(folders, key=lambda job: (not job.path.name.isdigit(), job.path.name.zfill(9)))


def refuse_another_text(directory: Path, config: DictConfig) -> None:
    """Refuse a job whose text has changed since other jobs, or the job itself, ended in the folder of its multirun.

    Args:
        directory: folder of the multirun.
        config: of the job.

    Raises:
        UserError: a table would have losses of two texts.
    """
    text = of_text(identity(config))
    ended = [job for job in job_folders(directory) if of_text(job.record.get("options", {})) == text]
    if results := {job.path: job.result["corpus"] for job in ended if job.result and "corpus" in job.result}:
        from txl_lightning.data.corpus import corpus_source  # imports numpy

        with suppress(OptionError):  # a corpus that cannot be read: a job that needs it says so
            _, checksum = corpus_source(typed(config.data))
            for path, corpus in results.items():
                if corpus["sha256"] != checksum:
                    other = f"{path} is of another text than data={config.data.name} is now"
                    raise UserError(f"{other}: choose another hydra.sweep.dir, or delete the old jobs")


def choose_folders(directory: Path, jobs: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[Path]:
    """Choose the folder of each job of a multirun: the one that it ran in before, or a free one.

    Args:
        directory: folder of the multirun.
        jobs: folder by its number, and `identity`, of each job.
    """
    known = {job.path: job.record.get("options") for job in job_folders(directory)}
    chosen: list[Path] = []
    for wanted, options in jobs:
        own = [path for path, of in known.items() if of == options and path not in chosen]
        place = wanted if wanted in own or not own else own[0]
        if not own and (place in chosen or place in known) and place.parent == directory:
            # After the numbers of all jobs.
            numbered = (directory / str(number) for number in count(len(jobs)))
            place = next(path for path in numbered if not path.exists() and path not in chosen)
        chosen.append(place)
    return chosen


def identity(config: DictConfig) -> dict[str, Any]:
    """Return all resolved options of a job by dotted name, without those of `WITHOUT_INFLUENCE`."""
    nodes = {str(name): config[name] for name in config if name != "hydra"}
    options = {n: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for n, v in nodes.items()}
    return with_influence(options)


def with_influence(options: dict[str, Any]) -> dict[str, Any]:
    """Return nested options as JSON values by dotted name, without those of `WITHOUT_INFLUENCE`."""
    values = json.loads(json.dumps(flat(options)))
    return {name: value for name, value in values.items() if not _is_in(name, WITHOUT_INFLUENCE)}


def of_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an identity that name the text of a job."""
    return {k: v for k, v in options.items() if k.startswith("data.") and not _is_in(k, NOT_OF_THE_TEXT)}


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the first option that differs, such as `seed=1, not 2`; others may follow it, as `data.seed` does."""
    names = sorted((*now, *before), key=lambda name: name.count("."))
    name = next(name for name in names if now.get(name) != before.get(name))
    return f"{name}={before.get(name)}, not {now.get(name)}"


@cache
def code_of(*modules: str) -> str:
    """Return the SHA-256 of the code that modules run, without comments, layout and docstrings.

    Their code is theirs and that of every module of the same top-level packages that it imports, directly or not, also
    inside functions; of an imported package all modules. Presentation is left out (`SHOWS_ONLY`).

    Args:
        modules: dotted names, such as `txl_lightning.training.command`.
    """
    roots = {name.partition(".")[0] for name in (*modules, __name__)}
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] not in roots:
            continue
        if (path := _file(name)) is None:  # a class or function of a module
            path = _file(name := name.rpartition(".")[0])
        shows_only = name.rpartition(".")[2] in SHOWS_ONLY_NAMES or _is_in(name, SHOWS_ONLY)
        if path is None or name in found or shows_only:
            continue
        found[name], imported = _statements_and_imports(path)
        waiting += imported
        if path.name == "__init__.py" and "." in name:
            waiting += [f"{name}.{inner.stem}" for inner in path.parent.glob("*.py") if inner != path]
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()


@cache
def _statements_and_imports(path: Path) -> tuple[str, list[str]]:
    source = path.read_text("utf-8")
    imported = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
    return statements(source), imported


def statements(source: str) -> str:
    """Return the syntax tree of a source, without comments, layout and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{group}.") for group in groups)


def _file(name: str) -> Path | None:
    top, *inner = name.split(".")
    path = Path(find_spec(top).submodule_search_locations[0], *inner)  # type: ignore[union-attr, index]
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
