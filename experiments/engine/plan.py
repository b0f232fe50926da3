"""Plan of a reproduction: its jobs, which of them are finished, what the others cost, and how they run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import median_high
from typing import Any

import torch

from experiments.engine.jobs import Job, composed, corpus_checksum, defaults, identities, merge, path_value
from experiments.engine.profiles import Setup
from experiments.engine.progress import Progress, clock
from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.errors import UserError, cores
from txl_lightning.evaluation.trained import read_checkpoint
from txl_lightning.files import file_checksum, locked
from txl_lightning.job_folder import RECORD, JobFolder
from txl_lightning.jobs import Ended, Jobs, Process
from txl_lightning.reporting import markdown_table
from txl_lightning.training.checkpoints import last_good

MAX_DEFAULT_PARALLEL = 8
COMMANDS_WITH_LOGGER = ("train", "evaluate", "recl", "attention", "speed")
LOG = "log.txt"
READ = (".json", ".jsonl", ".npz", ".png")  # files of a job that a report reads
RESULTS = {"train": "metrics.json", "evaluate": "evaluation.json"}  # else COMMAND.json


@dataclass
class Plan:
    """Jobs of a reproduction. `job.json` in a job's folder records the identity it ran with and whether it succeeded.

    Args:
        setup: settings.
        jobs: all of them, each after the jobs it needs.
        identities: everything that the numbers of a job depend on, by job name.
        slots: environment variables of each job that may run at once, such as its GPU.
    """

    setup: Setup
    jobs: list[Job]
    identities: dict[str, dict[str, Any]]
    slots: list[dict[str, str]]

    @property
    def finished(self) -> list[Job]:
        """Jobs that need not run again: they succeeded as the same job, and their files are as they were."""
        return [
            job
            for job in self.jobs
            if (record := self.record(job)).get("done")
            and self._is_same(job)
            and self.folder(job).result is not None
            and record.get("files") in (None, self._files(job))
        ]

    def _is_same(self, job: Job) -> bool:
        return self.record(job).get("options") == self.identities[job.name]

    def _files(self, job: Job) -> dict[str, str]:
        """Return the checksums of the files of a job that a report may read."""
        paths = sorted(self.folder(job).path.iterdir())
        return {path.name: file_checksum(path) for path in paths if path.suffix in READ and path.name != RECORD}

    def folder(self, job: Job) -> JobFolder:
        """Return the folder that a job writes into."""
        return JobFolder(self.setup.runs / job.name, result_file=RESULTS.get(job.command, f"{job.command}.json"))

    def record(self, job: Job) -> dict[str, Any]:
        """Return `options`, `seconds`, `done`, `command` and `files` of a job's last run; empty if there was none."""
        return self.folder(job).record

    def seconds(self, job: Job) -> float:
        """Return the estimated seconds of one job; a training is taken for one of the profile's own model."""
        fixed = self.setup.profile.seconds.get(job.command, 30.0)
        return fixed + (tokens_read(job) / self.tokens_per_second if job.command == "train" else 0.0)

    @cached_property
    def tokens_per_second(self) -> float:
        """Median speed of the finished trainings in this directory, or the profile's if there is none."""
        results = (self.folder(job).result for job in self.finished if job.command == "train")
        rates = [found["tokens"] / found["seconds"] for found in results if found and found["seconds"]]
        return median_high(rates) if rates else self.setup.profile.tokens_per_second

    @cached_property
    def stopped(self) -> dict[str, int]:
        """Step that each training goes on from that was under way when an earlier call ended; 0 for other jobs."""
        found = {}
        for job in self.jobs:
            if (record := self.record(job)) and not record.get("done"):
                resumes = job.command == "train" and self._is_same(job)
                path = last_good(self.folder(job).path / "checkpoints")[0] if resumes else None
                found[job.name] = read_checkpoint(path).step if path else 0
        return found

    def steps(self, job: Job) -> tuple[int, int]:
        """Return the steps that a training has done, by its last validation or checkpoint, and its steps in all."""
        if job.command != "train":
            return 0, 0
        done = 0
        if not self.record(job).get("done") and self._is_same(job):  # else its folder will be cleared
            done = self.stopped.get(job.name, 0)
            with suppress(OSError, ValueError, LookupError, TypeError):  # no validation yet
                last = (self.folder(job).path / "validation.jsonl").read_text().splitlines()[-1]
                done = max(done, int(json.loads(last)["steps"]))
        return done, composed(job.overrides).trainer.max_steps

    @property
    def seconds_left(self) -> float:
        """Estimated seconds of the jobs that are not finished."""
        finished, at_once = self.finished, min(len(self.slots), cores())
        left = {job: self.seconds(job) for job in self.jobs if job not in finished}
        return sum(seconds if job.alone else seconds / at_once for job, seconds in left.items())

    def summary(self) -> str:
        """Return how many jobs there are and how many are finished, the time left, and a line for each stopped one."""
        setup, finished = self.setup, self.finished
        stale = sum(bool(self.record(job).get("done")) for job in self.jobs if job not in finished)
        rerun = f" ({stale} more had other settings, code or text, or a damaged result, and run again)" if stale else ""
        lines = [
            f"profile {setup.profile.name}: {len(self.jobs)} jobs, {len(finished)} of them finished before"
            f"{rerun}, {len(self.slots)} at once, into {os.path.relpath(setup.directory)}: "
            f"about {clock(self.seconds_left)} left"
        ]
        for job in (job for job in self.jobs if job.name in self.stopped):
            done, steps = self.stopped[job.name], self.steps(job)[1]
            then = f"goes on from step {done:,} of {steps:,}" if done else "starts again"
            lines.append(f"was under way when the last call ended: {job.name} {then}")
        return "\n".join(lines)

    def table(self) -> str:
        """Return every job with its sections, its state and its estimated time, and the sum, as Markdown."""
        setup, finished, speed = self.setup, self.finished, f"{self.tokens_per_second:,.0f} tokens/s"
        rows = []
        for job in self.jobs:
            size = f"{tokens_read(job):,} tokens" if job.command == "train" else ""
            state = "finished" if job in finished else clock(self.seconds(job))
            rows.append([job.name, job.command, size, ", ".join(job.sections), state])
        absent = [name for name in setup.profile.main if f"published-{name}" not in {job.name for job in self.jobs}]
        lines = [
            markdown_table(["job", "txl", "size", "used by", "time"], rows),
            f"left: about {clock(self.seconds_left)}, {len(self.slots)} jobs at once, at {speed}",
            f"needs: {setup.profile.needs}",
            f"into {setup.directory}",
        ]
        if absent and "main_results" in setup.sections:
            lines.append(f"not planned, because their corpora are not in data.root or TXL_DATA: {', '.join(absent)}")
        return "\n".join(lines)

    def run(self, report: Callable[[Progress], object] = lambda progress: None) -> None:
        """Run the jobs that are not finished; jobs that measure time run last, one at a time.

        Args:
            report: called several times a second while jobs run.

        Raises:
            UserError: jobs failed; raised after all others ended. A second call runs only what is missing.
            KeyboardInterrupt: raised after the running jobs have saved their state and stopped.
        """
        finished = self.finished
        jobs = Jobs(
            [job for job in self.jobs if job not in finished],
            self._start,
            self._end,
            n_slots=len(self.slots),
            first_signal=signal.SIGTERM,  # srun hands it on at once
            done={job.name for job in finished},
        )
        progress = Progress(jobs, self.seconds, min(len(self.slots), cores()), self.steps)

        def show() -> None:
            progress.show()
            report(progress)

        jobs.show = show
        jobs.run()
        if jobs.failed:
            raise UserError("\n".join(jobs.failed.values()))

    def _start(self, job: Job, slot: int) -> Process:
        folder = self.folder(job)
        with locked(folder.path, wait=True):  # for a job of a killed runner, which ends in moments
            if not self._is_same(job) or folder.record.get("done"):  # its files were changed
                folder.clear()
            self._write_record(job, 0.0, done=False)
        words = [job.command, *job.overrides_in(self.setup.runs), *self._options(job)]
        words += [f"hydra.run.dir={path_value(str(folder.path))}"]
        words += ["resume=auto"] if job.command == "train" else []
        command = [*self.setup.prefix, sys.executable, "-m", "txl_lightning.cli", *words]
        return Process(command, self.slots[slot], folder.path / LOG)

    def _options(self, job: Job) -> list[str]:
        """Return overrides that change no number: threads and the logger."""
        setup, training = self.setup, job.command == "train"
        # On CPU one thread for each job, however many run at once: the order of sums depends on the number of threads.
        threads = 1 if setup.profile.accelerator == "cpu" else max(1, cores() // len(self.slots))
        threads = cores() if job.alone else threads
        words = []
        if training or "num_threads" in defaults(job.command):
            words.append(f"{'trainer.' if training else ''}num_threads={threads}")
        if setup.logger == "wandb" and job.command in COMMANDS_WITH_LOGGER:
            tags = ",".join((setup.profile.name, *job.sections))
            return [*words, "logger=wandb", f"logger.group={job.sections[0]}", f"logger.tags=[{tags}]"]
        return [*words, f"logger={setup.logger}"] if training else words

    def _end(self, job: Job, ended: Ended) -> str | None:
        if ended.status is None:
            return f"{job.name} {ended.problem}"
        folder = self.folder(job)
        self._write_record(job, ended.seconds, done=ended.status == 0)
        if ended.status == 0 and folder.result is not None:
            return None
        log = folder.path / LOG
        output = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        how = ended.problem if ended.status else f"left no {folder.result_file}"
        return f"{job.name} {how}: {output[-1] if output else 'no output'} ({log})"

    def _write_record(self, job: Job, seconds: float, done: bool) -> None:
        """Write `job.json`; `seconds` are added to those of the interrupted runs before."""
        total = round(self.record(job).get("seconds", 0.0) + seconds, 2)
        command = shlex.join(["txl", job.command, *job.overrides])
        record = {"options": self.identities[job.name], "done": done, "seconds": total, "command": command}
        self.folder(job).write({**record, "files": self._files(job)} if done else record)


def make_plan(
    setup: Setup, jobs_by_section: dict[str, list[Job]], priority: Callable[[Job], tuple[int, ...]] = lambda job: ()
) -> Plan:
    """Merge the jobs of all sections, and identify each by what it depends on.

    Args:
        setup: settings.
        jobs_by_section: jobs of each section, in order.
        priority: jobs that need no other are ordered by it, else as given; each other job comes after those it needs.

    Raises:
        UserError: a corpus is missing, or there are too few GPUs.
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    jobs = in_order(merge(jobs_by_section), priority)
    trainings = {job.name: composed(job.overrides_in(setup.runs)) for job in jobs if job.command == "train"}
    checksums = {name: corpus_checksum(config.data, setup.planning) for name, config in trainings.items()}
    return Plan(setup, jobs, identities(jobs, checksums), make_slots(setup))


def in_order(jobs: list[Job], priority: Callable[[Job], tuple[int, ...]]) -> list[Job]:
    """Sort jobs by priority, each measurement right after the last of the jobs that it needs.

    Args:
        jobs: each after the jobs it needs.
        priority: of a job that needs no other; equal ones keep their order.
    """
    places: dict[str, tuple[tuple[int, ...], int]] = {}
    for i, job in enumerate(jobs):
        places[job.name] = max(places[name] for name in job.needs) if job.needs else (priority(job), i)
    return sorted(jobs, key=lambda job: places[job.name])


def make_slots(setup: Setup) -> list[dict[str, str]]:
    """Return the environment variables of each job that runs at once: on GPUs, each has GPUs of its own.

    Raises:
        UserError: there are too few GPUs, and not only a plan is asked for.
    """
    profile, n = setup.profile, setup.profile.devices
    if profile.accelerator != "gpu":
        return [{} for _ in range(setup.parallel or min(MAX_DEFAULT_PARALLEL, cores()))]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
    parallel = setup.parallel or max(1, len(found) // n)
    if parallel == 1 or setup.planning:
        return [{} for _ in range(parallel)]
    if parallel * n > len(found):
        raise UserError(f"--parallel {parallel}: needs {parallel * n} GPUs, {len(found)} are visible")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(found[i * n : (i + 1) * n])} for i in range(parallel)]


def tokens_read(job: Job) -> int:
    """Return how many tokens a training reads."""
    config = composed(job.overrides)
    return config.trainer.max_steps * tokens_per_step(config)
