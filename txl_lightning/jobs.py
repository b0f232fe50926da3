"""Jobs of multiruns and of the reproduction: what a job is, what it left, and how many run side by side.

A job has an identity, which is all that its numbers depend on, and a folder with a lock, the record `job.json` with
the identity under `options`, and a result, which is written last. Whoever starts jobs again compares identities and
runs only what is missing.

    multirun       the resolved options (`identity`); finished once `metrics.json` has the `objective`
    reproduction   these, code, text and the jobs that it needs; finished once `done`
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.schemas import flat, typed
from txl_lightning.distributed.processes import POLL_SECONDS, Ended, JobProcess, handled_signals
from txl_lightning.errors import OptionError, UserError
from txl_lightning.files import LOCK, write_json

RECORD, STARTED = "job.json", "config.yaml"
FIELDS: dict[str, Any] = {
    "objective": str,
    "overrides": list,
    "options": (dict, str),
    "error": str,
}  # of the record of a job
SECONDS_TO_KILL = 5.0  # from SIGTERM to SIGKILL

# Options that say how and where a job runs and what it leaves, and change no number.
WITHOUT_INFLUENCE = (
    *("logger", "resume", "checkpoint.every_n_steps", "data.root", "data.cache_dir"),
    *("trainer.progress_bar", "trainer.log_every_n_steps"),
)
NOT_OF_THE_TEXT = ("data.batch_size", "data.segment_len", "data.seed", "data.random_start")  # among options of `data`


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
        """Content of the record, {} without one: `options` (the identity); of a multirun overrides, objective, error.

        One that was changed after `write` is none; files that this class did not write have no checksum to compare.
        """
        found = self._content(self.record_file) or {}
        written = found.pop("sha256", None)
        fields = FIELDS if self.record_file == RECORD else {}
        fits = all(isinstance(found[name], kind) for name, kind in fields.items() if name in found)
        return found if fits and written in (None, checksum(found)) else {}

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of the result; None before the job has finished, or if a full disk has cut it off."""
        return self._content(self.result_file)

    def _content(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.path / name).read_text())
            return found if isinstance(found, dict) else None
        return None

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the record, with its checksum."""
        write_json(self.path / self.record_file, {**record, "sha256": checksum(record)})

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


def checksum(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record, or of an identity, as JSON."""
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
    corpora = {job.path: (job.result or {}).get("corpus") for job in ended}
    if results := {path: corpus for path, corpus in corpora.items() if isinstance(corpus, dict)}:
        from txl_lightning.data.corpus import corpus_source  # imports numpy

        with suppress(OptionError):  # a corpus that cannot be read: a job that needs it says so
            _, checksum = corpus_source(typed(config.data))
            for path, corpus in results.items():
                if corpus.get("sha256") != checksum:
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


def identity(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job as JSON values by dotted name, without those of `WITHOUT_INFLUENCE`.

    Args:
        options: nested, or a config that Hydra composed, which is resolved.
    """
    if isinstance(options, DictConfig):
        own = OmegaConf.masked_copy(options, [str(name) for name in options if name != "hydra"])
        options = cast("dict[str, Any]", OmegaConf.to_container(own, resolve=True))
    values = json.loads(json.dumps(flat(dict(options))))
    return {name: value for name, value in values.items() if not _is_in(name, WITHOUT_INFLUENCE)}


def of_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an identity that name the text of a job."""
    return {k: v for k, v in options.items() if k.startswith("data.") and not _is_in(k, NOT_OF_THE_TEXT)}


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the first option that differs, such as `seed=1, not 2`; others may follow it, as `data.seed` does."""
    names = sorted((*now, *before), key=lambda name: name.count("."))
    name = next(name for name in names if now.get(name) != before.get(name))
    return f"{name}={before.get(name)}, not {now.get(name)}"


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{group}.") for group in groups)


class Runnable(Protocol):
    """Something to run."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the jobs that must have succeeded before."""

    @property
    def alone(self) -> bool:
        """Whether no other job may run meanwhile."""


J = TypeVar("J", bound=Runnable)


@dataclass
class Jobs(Generic[J]):
    """Jobs that run, those that wait and those that have ended.

    Args:
        waiting: jobs to run; those that run alone come last.
        start: starts a job in a slot, a number below `n_slots`; may raise OSError or UserError.
        end: called with each job that ended; returns its error, or None for success.
        n_slots: jobs that run at once.
        grace_seconds: time for jobs to save after a signal.
        first_signal: asks the first process of a job to save and end.
        show: called after every change and ten times a second.

    Attributes:
        running: jobs with their process and their slot.
        done: names of the jobs that succeeded; may hold some from the beginning.
        failed: errors by job name.
        seconds: time of each job that ended, by name.
        stopped: whether a signal has ended the jobs.
    """

    waiting: list[J]
    start: Callable[[J, int], JobProcess]
    end: Callable[[J, Ended], str | None]
    n_slots: int = 1
    grace_seconds: float = 60.0
    first_signal: signal.Signals = signal.SIGINT
    show: Callable[[], object] = lambda: None
    running: list[tuple[J, JobProcess, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False

    def run(self) -> None:
        """Run all jobs and wait for them.

        At the first signal of `STOP_SIGNALS` the running jobs are asked to end and no further job starts.
        Jobs that still run after `grace_seconds`, or at a second signal, are terminated, then killed.

        Raises:
            KeyboardInterrupt: after a signal, its argument, once all processes have ended.
        """
        self.waiting.sort(key=lambda job: job.alone)
        stops, received = list[tuple[float, Callable[[JobProcess], None]]](), list[int]()
        # A list instead of an exception, which would be raised between any two steps.
        with handled_signals(lambda number, _: received.append(number)):
            try:
                while self.running or (self.waiting and not self.stopped):
                    if not self.stopped:
                        self._start_ready()
                    self._collect()
                    now = time.monotonic()
                    if received and not self.stopped:
                        self.stopped, deadline = True, now + self.grace_seconds
                        stops = [
                            (now, lambda process: process.interrupt(self.first_signal)),
                            (deadline, lambda process: process.end(signal.SIGTERM)),
                            (deadline + SECONDS_TO_KILL, lambda process: process.end(signal.SIGKILL)),
                        ]
                    while stops and (now >= stops[0][0] or len(received) > 1):
                        _, stop = stops.pop(0)
                        for _, process, _ in self.running:
                            stop(process)
                    if not self.stopped:
                        self.show()
                    if self.running:
                        time.sleep(POLL_SECONDS)
            finally:
                for _, process, _ in self.running:
                    process.end(signal.SIGKILL)
        if received:
            raise KeyboardInterrupt(received[0])

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            if any(need in self.failed for need in job.needs):
                self.waiting.remove(job)
                self.failed[job.name] = f"{job.name} was not run: it needs {', '.join(job.needs)}"
                continue
            busy = {slot for _, _, slot in self.running}
            free = [slot for slot in range(self.n_slots) if slot not in busy]
            if not free or any(running.alone for running, _, _ in self.running) or (job.alone and busy):
                return
            if all(need in self.done for need in job.needs):
                self.waiting.remove(job)
                try:
                    self.running.append((job, self.start(job, free[0]), free[0]))
                except (OSError, UserError) as error:  # the other jobs can still run
                    self._ended(job, Ended(None, None, error=error))

    def _collect(self) -> None:
        for entry in list(self.running):
            if (ended := entry[1].poll()) is not None:
                self.running.remove(entry)
                self._ended(entry[0], ended)

    def _ended(self, job: J, ended: Ended) -> None:
        self.seconds[job.name] = ended.seconds
        if (error := self.end(job, ended)) is None:
            self.done.add(job.name)
        elif not self.stopped:
            self.failed[job.name] = error
