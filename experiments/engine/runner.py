"""Run the jobs of a reproduction, several at once, and skip the finished ones."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.engine.jobs import Job, path_value
from txl_lightning.cli import main
from txl_lightning.errors import UserError
from txl_lightning.jobs.folder import JobFolder
from txl_lightning.jobs.processes import Ended, JobProcess, Jobs, execute
from txl_lightning.jobs.progress import Progress

RECORD = "job.json"
LOG = "log.txt"
RESULTS = {"train": "metrics.json", "evaluate": "evaluation.json", "generate": "generation.json"}
PRELOADED = (
    "txl_lightning.command_line.hydra_app",
    "txl_lightning.training.run",
    "txl_lightning.evaluation.perplexity.command",
    "wandb",
)


def result_file(command: str) -> str:
    """Return the name of the file that a command writes last: COMMAND.json unless listed in `RESULTS`."""
    return RESULTS.get(command, f"{command}.json")


@dataclass
class Runner:
    """Runs jobs; `job.json` in a job's folder records the key it ran with and whether it succeeded.

    Args:
        runs: folder of all runs.
        keys: hash of everything that a job depends on, by job name.
        slots: environment variables of each job that may run at once, such as its GPU.
        options: overrides that change no number (logger, threads), appended to a job's command.
        prefix: words in front of every command, such as `srun --nodes 2`.

    Attributes:
        state: jobs of this call that wait, run or ended; those of earlier calls are done.
    """

    runs: Path
    keys: dict[str, str]
    slots: list[dict[str, str]]
    options: Callable[[Job], list[str]]
    prefix: tuple[str, ...] = ()
    state: Jobs[Job] = field(init=False)

    def folder(self, job: Job) -> JobFolder:
        """Return the folder that a job writes into."""
        return JobFolder(self.runs / job.name, RECORD, result_file(job.command))

    def record(self, job: Job) -> dict[str, Any]:
        """Return `key`, `seconds`, `done` and `command` of a job's last run; empty if there was none."""
        return self.folder(job).record

    def is_finished(self, job: Job) -> bool:
        """Return whether a job succeeded with its present key and its result file can be read."""
        record = self.record(job)
        same = record.get("key") == self.keys[job.name]
        return same and bool(record.get("done")) and self.folder(job).result is not None

    def run(
        self,
        jobs: list[Job],
        progress_of: Callable[[Jobs[Job]], Progress[Job]],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Run all jobs that are not finished; jobs that measure time run last, one at a time.

        Args:
            jobs: all jobs.
            progress_of: returns the progress that is shown.
            tick: called ten times a second.

        Raises:
            UserError: jobs failed; raised after all others ended. A second call runs only what is missing.
            KeyboardInterrupt: raised after the running jobs have saved their state and stopped.
        """
        done = {job.name for job in jobs if self.is_finished(job)}
        self.state = Jobs(
            [job for job in jobs if job.name not in done],
            self._start,
            self._end,
            n_slots=len(self.slots),
            first_signal=signal.SIGTERM,  # srun hands it on at once
            done=done,
        )
        progress = progress_of(self.state)

        def show() -> None:
            progress.show()
            tick()

        self.state.show = show
        try:
            self.state.run()
        finally:
            progress.close()
        if self.state.failed:
            raise UserError("\n".join(self.state.failed.values()))

    def _start(self, job: Job, slot: int) -> JobProcess:
        folder = self.folder(job)
        with folder.locked():  # by a job of a killed runner, for moments
            if folder.record.get("key") != self.keys[job.name]:
                folder.clear()
            self._write_record(job, 0.0, done=False)
        words = [*job.words(self.runs), *self.options(job), f"hydra.run.dir={path_value(str(folder.path))}"]
        words += ["resume=auto"] if job.command == "train" else []
        log = folder.path / LOG
        return JobProcess(run_txl, folder, words, self.prefix, variables=self.slots[slot], log=log, modules=PRELOADED)

    def _end(self, job: Job, ended: Ended) -> str | None:
        if ended.status is None:
            return f"{job.name} {ended.problem}"
        self._write_record(job, ended.seconds, done=ended.status == 0)
        if self.is_finished(job):
            return None
        log = self.folder(job).path / LOG
        output = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        how = ended.problem if ended.status else f"left no {result_file(job.command)}"
        return f"{job.name} {how}: {output[-1] if output else 'no output'} ({log})"

    def _write_record(self, job: Job, seconds: float, done: bool) -> None:
        """Write `job.json`; `seconds` are added to those of the interrupted runs before."""
        total = round(self.record(job).get("seconds", 0.0) + seconds, 2)
        command = shlex.join(["txl", job.command, *job.overrides])
        record = {"key": self.keys[job.name], "done": done, "seconds": total, "command": command}
        self.folder(job).write(record)


def run_txl(folder: JobFolder, words: list[str], prefix: tuple[str, ...]) -> None:
    """Run `txl` in the process of a job, or a command that begins with a prefix in its place."""
    with folder.locked() as lock:
        if prefix:
            execute([*prefix, sys.executable, "-m", "txl_lightning.cli", *words], lock.fileno())
        sys.argv = ["txl", *words]
        main()
