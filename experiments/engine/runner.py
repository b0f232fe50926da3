"""Runs jobs, as many side by side as there is room for, and leaves finished ones alone."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from experiments.engine import job_process
from experiments.engine.jobs import Job
from txl_lightning.errors import UserError

RECORD = "job.json"
LOG = "log.txt"
RESULTS = {
    "train": "metrics.json",
    "evaluate": "evaluation.json",
    "generate": "generation.json",
}  # others: COMMAND.json
GRACE_SECONDS = 60.0


def result_of(command: str) -> str:
    """The file that a command ends with."""
    return RESULTS.get(command, f"{command}.json")


class Handle(Protocol):
    """A running process."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


class Program:
    """A process behind a prefix such as `srun …`, with the interface of multiprocessing's."""

    def __init__(self, command: list[str], log: Path, lock: IO[str], environment: dict[str, str]) -> None:
        with log.open("a") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | environment,
                pass_fds=(lock.fileno(),),  # held as long as it runs, also when the runner is gone
            )
        self.terminate, self.kill = self.process.terminate, self.process.kill

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""
        return self.process.poll()


@dataclass
class Running:
    """A job under way."""

    job: Job
    handle: Handle
    slot: int
    started: float = field(default_factory=time.perf_counter)


@dataclass
class Runner:
    """Runs jobs and remembers, in each job's folder, what it was run with and that it ended well.

    Args:
        runs: the folder of all runs.
        keys: what each job depends on, hashed.
        slots: the environment of each job that may run at once, such as its GPU.
        options: behind every call of a command, that change no number (logger and so on).
        prefix: put in front of every command, such as `srun --nodes 2`.
        show: told after every change and four times a second.
    """

    runs: Path
    keys: dict[str, str]
    slots: list[dict[str, str]]
    options: Callable[[Job], list[str]]
    prefix: list[str] = field(default_factory=list)
    show: Callable[[Runner], None] = lambda runner: None
    running: list[Running] = field(default_factory=list)
    done: dict[str, Job] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    waiting: list[Job] = field(default_factory=list)

    def directory(self, job: Job) -> Path:
        """Where a job writes."""
        return self.runs / job.name

    def record(self, job: Job) -> dict[str, Any]:
        """What is known of a job's last run: `key`, `seconds`, `done`; empty if there was none."""
        try:
            found = json.loads((self.directory(job) / RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_finished(self, job: Job) -> bool:
        """Whether it ended well with the same key and its result is there."""
        record = self.record(job)
        result = self.directory(job) / result_of(job.command)
        return record.get("key") == self.keys[job.name] and bool(record.get("done")) and result.is_file()

    def run(self, jobs: list[Job]) -> None:
        """Run what is not finished; those that measure time come last and alone.

        Raises:
            UserError: jobs failed, after all others were run; a second call goes on there.
            KeyboardInterrupt: after the running jobs have saved and stopped.
        """
        self.done = {job.name: job for job in jobs if self.is_finished(job)}
        self.waiting = sorted((job for job in jobs if job.name not in self.done), key=lambda job: job.alone)
        try:
            while self.waiting or self.running:
                self._start_what_can()
                self._collect()
                self.show(self)
                if self.running:
                    time.sleep(0.1)
        except BaseException:
            self._stop()
            raise
        if self.failed:
            raise UserError("\n".join(self.failed.values()))

    def _start_what_can(self) -> None:
        for job in list(self.waiting):
            if any(need in self.failed for need in job.needs):
                self.waiting.remove(job)
                self.failed[job.name] = f"{job.name} was not run: it needs {', '.join(job.needs)}"
                continue
            busy = {running.slot for running in self.running}
            free = [slot for slot in range(len(self.slots)) if slot not in busy]
            if not free or any(running.job.alone for running in self.running) or (job.alone and busy):
                return
            if all(need in self.done for need in job.needs):
                self.waiting.remove(job)
                self._start(job, free[0])

    def _start(self, job: Job, slot: int) -> None:
        directory, lock = self.directory(job), self.runs / f".{job.name}.lock"
        self.runs.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            wait_for_lock(held, job.name)
            record = self.record(job)
            if record.get("key") != self.keys[job.name]:
                shutil.rmtree(directory, ignore_errors=True)
                record = {}
            directory.mkdir(parents=True, exist_ok=True)
            self._write(job, {**record, "key": self.keys[job.name], "done": False})
            words = [*job.words(self.runs), *self.options(job), f"hydra.run.dir={directory}"]
            words += ["resume=auto"] if job.command == "train" else []
            if self.prefix:
                command = [*self.prefix, sys.executable, "-m", "txl_lightning.cli", *words]
                handle: Handle = Program(command, directory / LOG, held, self.slots[slot])
        if not self.prefix:
            handle = job_process.start(words, directory / LOG, lock, self.slots[slot])
        self.running.append(Running(job, handle, slot))

    def _collect(self) -> None:
        for running in list(self.running):
            status = running.handle.exitcode
            if status is None:
                continue
            self.running.remove(running)
            job, directory = running.job, self.directory(running.job)
            seconds = self.record(job).get("seconds", 0.0) + time.perf_counter() - running.started
            self._write(job, {"key": self.keys[job.name], "done": status == 0, "seconds": round(seconds, 2)})
            if status == 0 and self.is_finished(job):
                self.done[job.name] = job
            else:
                said = (directory / LOG).read_text(errors="replace").strip().splitlines()
                last = said[-1] if said else "it said nothing"
                how = f"ended with exit status {status}" if status else f"left no {result_of(job.command)}"
                self.failed[job.name] = f"{job.name} {how}: {last} ({directory / LOG})"

    def _write(self, job: Job, record: dict[str, Any]) -> None:
        path = self.directory(job) / RECORD
        text = json.dumps({**record, "command": shlex.join(["txl", job.command, *job.overrides])}, indent=2)
        path.with_suffix(".part").write_text(text + "\n")
        path.with_suffix(".part").rename(path)

    def _stop(self) -> None:
        """Let the running jobs save, and see them off."""
        for running in self.running:
            running.handle.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(running.handle.exitcode is None for running in self.running):
            time.sleep(0.1)
        for running in self.running:
            if running.handle.exitcode is None:
                running.handle.kill()
            seconds = self.record(running.job).get("seconds", 0.0) + time.perf_counter() - running.started
            done = running.handle.exitcode == 0
            self._write(running.job, {"key": self.keys[running.job.name], "done": done, "seconds": round(seconds, 2)})
        self.running.clear()


def wait_for_lock(file: IO[str], name: str) -> None:
    """Take a job's lock; one of a runner that was killed ends within a moment.

    Raises:
        UserError: it is still held.
    """
    for _ in range(100):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.1)
    raise UserError(f"{name} is still running, started by a reproduction that was killed: stop it first")
