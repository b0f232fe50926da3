"""Plan a reproduction: its jobs, the finished ones, and how the others run.

`job.json` in a job's folder records the identity it ran with, its seconds, and whether it succeeded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.engine.jobs import Job, composed, identities
from experiments.engine.profiles import Profile, Setup
from experiments.engine.progress import Progress, clock
from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import UserError, cores
from txl_lightning.files import locked
from txl_lightning.jobs import LOG, Jobs, Process, problem, start_job
from txl_lightning.multirun import JobFolder
from txl_lightning.reporting import markdown_table

MAX_DEFAULT_PARALLEL = 8
RESULTS = {"train": "metrics.json", "evaluate": "evaluation.json"}  # else COMMAND.json


@dataclass
class Plan:
    """Jobs to be run for a reproduction.

    Args:
        setup: settings.
        jobs: each after the jobs it needs.
        identities: everything that a job's numbers depend on, by job name.
        parallel: jobs that run at once.
    """

    setup: Setup
    jobs: list[Job]
    identities: dict[str, dict[str, Any]]
    parallel: int

    def finished(self) -> set[str]:
        """Return the names of jobs that need not run again: they succeeded as the same job."""
        names = set()
        for job in self.jobs:
            folder = self.folder(job)
            if folder.record.get("done") and self._is_same(job) and folder.result:
                names.add(job.name)
        return names

    def folder(self, job: Job) -> JobFolder:
        """Return the folder that a job writes into."""
        result_file = RESULTS.get(job.command, f"{job.command}.json")
        return JobFolder(self.setup.runs / job.name, result_file=result_file)

    def seconds(self, job: Job) -> float:
        """Return the seconds that a job ran for, in all calls."""
        return float(self.folder(job).record.get("seconds", 0.0))

    def _is_same(self, job: Job) -> bool:
        return self.folder(job).options == self.identities[job.name]

    def summary(self) -> str:
        """Return how many jobs there are, how many are finished, and where they write."""
        name = self.setup.profile.name
        finished = f"{len(self.finished())} of {len(self.jobs)} jobs finished before"
        where = os.path.relpath(self.setup.directory)
        return f"profile {name}: {finished}, {self.parallel} at once, into {where}"

    def run(self, report: Callable[[], object]) -> None:
        """Run the jobs that are not finished; jobs that measure time run last, one at a time.

        Args:
            report: called several times a second while jobs run.

        Raises:
            UserError: jobs failed; raised after all others ended. A second call runs only what is missing.
            KeyboardInterrupt: raised after the running jobs have saved their state and stopped.
        """
        finished = self.finished()
        unfinished = [job for job in self.jobs if job.name not in finished]
        jobs = Jobs(
            unfinished,
            self._start,
            self._end,
            at_once=self.parallel,
            done=finished,
        )
        profile = self.setup.profile
        estimates = {job.name: estimated_seconds(job, profile) for job in unfinished}
        progress = Progress(
            jobs,
            estimates,
            min(self.parallel, cores()),
        )

        def show() -> None:
            progress.show()
            report()

        jobs.show = show
        jobs.run()
        if jobs.failed:
            raise UserError("\n".join(jobs.failed.values()))

    def _start(self, job: Job) -> Process:
        folder = self.folder(job)
        with locked(folder.path, wait=True):  # after a kill, an orphaned job ends in moments
            if not self._is_same(job) or folder.record.get("done"):
                shutil.rmtree(folder.path)
            self._write_record(job, 0.0, done=False)
        words = [job.command, *job.overrides_in(self.setup.runs), *self._options(job)]
        return start_job(words, folder.path, {}, has_log=True)

    def _options(self, job: Job) -> list[str]:
        """Return overrides that change no number: threads, the logger, resume."""
        # On a CPU one thread for each job, however many run at once: sums depend on their number.
        threads = 1
        if job.alone:
            threads = cores()
        elif self.setup.config.trainer.accelerator == "gpu":
            threads = max(1, cores() // self.parallel)
        words = [f"num_threads={threads}"]
        if job.command == "train":
            words = [f"trainer.num_threads={threads}", "resume=auto"]
        logger = self.setup.logger
        if logger == "wandb":
            words += ["logger=wandb", f"logger.group={self.setup.profile.name}"]
        elif job.command == "train":
            words.append(f"logger={logger}")
        return words

    def _end(self, job: Job, process: Process) -> str | None:
        """Record that a job ended, and return its error."""
        status = process.returncode
        self._write_record(job, process.seconds, done=status == 0)
        if not status:
            return None
        log = self.folder(job).path / LOG
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        return f"{job.name} {problem(status)}: {lines[-1]} ({log})"

    def _write_record(self, job: Job, seconds: float, done: bool) -> None:
        """Write `job.json`; `seconds` are added to the interrupted runs' seconds."""
        self.folder(job).write(
            options=self.identities[job.name],
            done=done,
            seconds=round(self.seconds(job) + seconds, 2),
        )


def make_plan(setup: Setup, jobs: list[Job]) -> Plan:
    """Identify each job by what it depends on, and choose how many run at once.

    Raises:
        UserError: a corpus is missing.
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    checksums = {}
    for job in jobs:
        if job.command == "train":
            data = composed(job.overrides_in(setup.runs)).data
            checksums[job.name] = load_corpus(data).checksum
    parallel = min(MAX_DEFAULT_PARALLEL, cores())
    if setup.config.trainer.accelerator == "gpu":
        parallel = 1
    return Plan(
        setup,
        jobs,
        identities(jobs, checksums),
        setup.parallel or parallel,
    )


def tokens_read(job: Job) -> int:
    """Return how many tokens a training reads."""
    config = composed(job.overrides)
    return config.trainer.max_steps * tokens_per_step(config)


def estimated_seconds(job: Job, profile: Profile) -> float:
    """Return the estimated seconds for a job; a training is assumed to train the profile's model."""
    seconds = profile.seconds[job.command]
    if job.command == "train":
        seconds += tokens_read(job) / profile.tokens_per_second
    return seconds


def plan_table(setup: Setup, jobs: Sequence[Job]) -> str:
    """Return every job with its estimated time, and the sum, as Markdown."""
    rows = []
    total = 0.0
    for job in jobs:
        seconds = estimated_seconds(job, setup.profile)
        total += seconds
        size = ""
        if job.command == "train":
            size = f"{tokens_read(job):,} tokens"
        rows.append(
            [
                job.name,
                job.command,
                size,
                clock(seconds),
            ]
        )
    lines = [
        markdown_table(["job", "txl", "size", "time"], rows),
        f"about {clock(total)} of one job at a time, if nothing is finished",
        f"needs: {setup.profile.needs}",
        f"into {setup.directory}",
    ]
    return "\n".join(lines)
