"""Run jobs, several at once, and skip the finished ones."""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.engine import job_process
from experiments.engine.job_process import JobHandle, PrefixedProcess
from experiments.engine.jobs import Job, path_value
from experiments.engine.outcomes import read_json
from txl_lightning.errors import UserError
from txl_lightning.files import write_json

RECORD = "job.json"
LOG = "log.txt"
RESULTS = {"train": "metrics.json", "evaluate": "evaluation.json", "generate": "generation.json"}
GRACE_SECONDS = 60.0
LOCK_SECONDS = 10.0


def result_file(command: str) -> str:
    """Return the name of the file that a command writes last: COMMAND.json unless listed in `RESULTS`."""
    return RESULTS.get(command, f"{command}.json")


@dataclass
class Running:
    """Job whose process runs.

    Args:
        job: the job.
        handle: its process.
        slot: number of its slot.
        started: start time, on the clock of `time.perf_counter`.
    """

    job: Job
    handle: JobHandle
    slot: int
    started: float = field(default_factory=time.perf_counter)


@dataclass
class Runner:
    """Runs jobs; `job.json` in a job's folder records the key it ran with and whether it succeeded.

    Args:
        runs: folder of all runs.
        keys: hash of everything that a job depends on, by job name.
        slots: environment variables of each job that may run at once, such as its GPU.
        options: overrides that change no number (logger, threads), appended to a job's command.
        prefix: words in front of every command, such as `srun --nodes 2`.
        show: called after every change and ten times a second.

    Attributes:
        running, waiting: jobs of this call that run and that have not started.
        done: finished jobs by name, those of earlier calls included.
        failed: error messages by job name.
    """

    runs: Path
    keys: dict[str, str]
    slots: list[dict[str, str]]
    options: Callable[[Job], list[str]]
    prefix: tuple[str, ...] = ()
    show: Callable[[Runner], None] = lambda runner: None
    running: list[Running] = field(default_factory=list)
    done: dict[str, Job] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    waiting: list[Job] = field(default_factory=list)

    def directory(self, job: Job) -> Path:
        """Return the folder that a job writes into."""
        return self.runs / job.name

    def record(self, job: Job) -> dict[str, Any]:
        """Return `key`, `seconds`, `done` and `command` of a job's last run; empty if there was none."""
        try:
            found = json.loads((self.directory(job) / RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_finished(self, job: Job) -> bool:
        """Return whether a job succeeded with its present key and its result file can be read."""
        record = self.record(job)
        if record.get("key") != self.keys[job.name] or not record.get("done"):
            return False
        try:
            read_json(self.directory(job) / result_file(job.command))
        except UserError:  # missing, or cut off by a full disk or a loss of power
            return False
        return True

    def run(self, jobs: list[Job]) -> None:
        """Run all jobs that are not finished; jobs that measure time run last, one at a time.

        Raises:
            UserError: jobs failed; raised after all others ended. A second call runs only what is missing.
            KeyboardInterrupt: raised after the running jobs have saved their state and stopped.
        """
        self.done = {job.name: job for job in jobs if self.is_finished(job)}
        self.waiting = sorted((job for job in jobs if job.name not in self.done), key=lambda job: job.alone)
        try:
            while self.waiting or self.running:
                self._start_ready_jobs()
                self._collect()
                self.show(self)
                if self.running:
                    time.sleep(0.1)
        except BaseException:
            self._stop()
            raise
        if self.failed:
            raise UserError("\n".join(self.failed.values()))

    def _start_ready_jobs(self) -> None:
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
            _wait_for_lock(held, job.name)
            record = self.record(job)
            if record.get("key") != self.keys[job.name]:
                shutil.rmtree(directory, ignore_errors=True)
                record = {}
            directory.mkdir(parents=True, exist_ok=True)
            self._write_record(job, record.get("seconds", 0.0), done=False)
            words = [*job.words(self.runs), *self.options(job), f"hydra.run.dir={path_value(str(directory))}"]
            words += ["resume=auto"] if job.command == "train" else []
            if self.prefix:
                handle: JobHandle = PrefixedProcess(self.prefix, words, directory / LOG, held, self.slots[slot])
        if not self.prefix:
            handle = job_process.start(words, directory / LOG, lock, self.slots[slot])
        self.running.append(Running(job, handle, slot))

    def _collect(self) -> None:
        for running in list(self.running):
            status = running.handle.exitcode
            if status is None:
                continue
            self.running.remove(running)
            job, log = running.job, self.directory(running.job) / LOG
            self._write_record(job, self._total_seconds(running), done=status == 0)
            if self.is_finished(job):
                self.done[job.name] = job
            else:
                output = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                how = f"ended with exit status {status}" if status else f"left no {result_file(job.command)}"
                self.failed[job.name] = f"{job.name} {how}: {output[-1] if output else 'no output'} ({log})"

    def _stop(self) -> None:
        """End the running jobs, with time for them to save their state."""
        for running in self.running:
            running.handle.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(running.handle.exitcode is None for running in self.running):
            time.sleep(0.1)
        for running in self.running:
            if running.handle.exitcode is None:
                running.handle.kill()
            self._write_record(running.job, self._total_seconds(running), done=running.handle.exitcode == 0)
        self.running.clear()

    def _total_seconds(self, running: Running) -> float:
        """Return the seconds of this run of a job and of the interrupted ones before."""
        return float(self.record(running.job).get("seconds", 0.0)) + time.perf_counter() - running.started

    def _write_record(self, job: Job, seconds: float, done: bool) -> None:
        record = {"key": self.keys[job.name], "done": done, "seconds": round(seconds, 2)}
        command = shlex.join(["txl", job.command, *job.overrides])
        write_json(self.directory(job) / RECORD, {**record, "command": command})


def _wait_for_lock(file: IO[str], name: str) -> None:
    """Take a job's lock; jobs of a killed runner release it within moments.

    Raises:
        UserError: it is still held after `LOCK_SECONDS`.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"{name} is still running, started by a reproduction that was killed: stop it first"
                raise UserError(message) from error
            time.sleep(0.1)
