"""Launcher for multiruns, `hydra/launcher=process`: every job is the plain command in a fresh process.

    txl train -m seed=1,2   runs   txl train seed=1 hydra.mode=RUN hydra.run.dir=FOLDER/0   and the same with seed=2

A finished job is skipped and a stopped one resumed. A failed job does not stop the rest. One job at a time writes to
the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from txl_lightning.errors import COUNT, UserError, check, cores, is_first_rank, notice
from txl_lightning.files import locked
from txl_lightning.jobs import LOG, Jobs, Process, problem, start_job
from txl_lightning.multirun import (
    NO_ORDER,
    JobFolder,
    choose_folder,
    identity_with_text,
    job_folders,
    ordering,
    shared_precision,
    write_results,
)
from txl_lightning.registry import Command

NO_OUTPUT = "hydra.output_subdir=null"
log = logging.getLogger(__name__)


@dataclass
class Call:
    """The `txl` call in this process: Hydra makes callbacks and launchers from a config, and they share this.

    Attributes:
        folder: folder of a single run.
        sweep_dir: folder of the multirun; None for a single run.
        locks: locks of folders, held until the command ends.
        failures: a line for each job that failed.
    """

    folder: Path | None = None
    sweep_dir: Path | None = None
    locks: ExitStack = field(default_factory=ExitStack)
    failures: list[str] = field(default_factory=list)


CALL = Call()


class Refusal(BaseException):
    """An expected error on its way through Hydra, as the cause: Hydra reports exceptions in callbacks as warnings."""


@dataclass(frozen=True, kw_only=True)
class MultirunJob(JobFolder):
    """One job in a multirun, with the folder that it writes into.

    Attributes:
        title: its number and overrides.
        words: the plain command after `txl`.
    """

    title: str
    words: list[str]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Folder: equal jobs share one."""
        return str(self.path)


class Multirun:
    """Jobs of one multirun as plain commands: prepared, run, and the losses that they end with.

    Args:
        command: the command.
        settings: Hydra's node `hydra`.
        max_parallel: jobs that run at once; they share the cores, or OMP_NUM_THREADS.
    """

    def __init__(self, command: Command, settings: Any, max_parallel: int = 1) -> None:
        self.command = command
        self.max_parallel = max_parallel
        self.root = Path(str(settings.sweep.dir)).absolute()
        self.failed: dict[str, str] = {}  # errors by job
        # Other sweepers read the losses.
        self.is_search = not settings.sweeper._target_.endswith("BasicSweeper")

    def prepare(self, config: DictConfig) -> MultirunJob:
        """Return the job that Hydra has just composed; for a training, choose its folder and record it there.

        Raises:
            UserError: the folder holds another job, or a job of another text.
        """
        settings: Any = HydraConfig.get()
        path = Path(str(settings.runtime.output_dir))
        overrides: Any = OmegaConf.to_container(settings.overrides)  # interpolations stay
        own = list(filter_overrides(overrides["task"]))
        words = [self.command.name]
        for source in settings.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", str(source.path)]
        number = settings.job.num
        words += [word for word in overrides["hydra"] if word != NO_OUTPUT]
        words += overrides["task"]
        words += ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id={number}"]
        if self.command.resume:
            config.trainer.precision = shared_precision(self.root, config)
            words += [self.command.resume, f"trainer.precision={config.trainer.precision}"]
            options = identity_with_text(config)
            path = choose_folder(self.root, path, options, self.is_search)
            if is_first_rank():  # SLURM starts the task for each rank of a job
                JobFolder(path).write(overrides=own, options=options)
        path.mkdir(parents=True, exist_ok=True)
        return MultirunJob(path, title=f"job {number} ({' '.join(own)})", words=words)

    def run(self, jobs: list[MultirunJob]) -> None:
        """Run the jobs that have not finished.

        Raises:
            KeyboardInterrupt: a signal ended all jobs.
        """
        to_run = {}
        for job in jobs:
            if self.command.resume and job.result:
                log.info(f"{job.title} has finished before: {job.name}")
            else:
                to_run[job.name] = job
        runner = Jobs(list(to_run.values()), self._start, self._end, self.max_parallel)
        try:
            runner.run()
        except KeyboardInterrupt as stopped:
            again = f"to continue, repeat the command with hydra.sweep.dir={self.root}"
            raise KeyboardInterrupt(*stopped.args, again) from None
        self.failed.update(runner.failed)

    def loss(self, job: MultirunJob) -> float | None:
        """Return the loss of a job that a search minimizes; None for a grid whose losses have no order.

        Raises:
            UserError: the job failed, or a search would minimize losses that cannot be compared.
        """
        if job.name in self.failed:
            raise UserError(self.failed[job.name])
        if not self.command.resume or not is_first_rank():  # the first rank may still be writing
            return None
        order = ordering(job_folders(self.root))
        if order is not None:
            return float(job.result[order])
        if self.is_search:
            raise UserError(NO_ORDER)
        return None

    def _start(self, job: MultirunJob) -> Process:
        log.info(f"{job.title} starts in {job.name}")
        if is_first_rank():
            with locked(job.path, wait=True):  # the job of a killed multirun ends in seconds
                pass
        variables = {"HYDRA_FULL_ERROR": "0"}  # this process has set it to 1
        if self.max_parallel > 1:
            available = int(os.environ.get("OMP_NUM_THREADS") or cores())
            variables["OMP_NUM_THREADS"] = str(max(1, available // self.max_parallel))
        return start_job(job.words, job.path, variables, has_log=self.max_parallel > 1)

    def _end(self, job: MultirunJob, process: Process) -> str | None:
        """Write the table; return the job's error if it failed."""
        with suppress(OSError):  # a full disk must not end the other jobs
            write_results(self.root)
        log.info(f"{job.title} ended")
        if not process.returncode:
            return None
        error = problem(process.returncode)
        if self.max_parallel > 1:
            error += f": see {job.path / LOG}"
        return job.record.get("error", error)


class ProcessLauncher(BasicLauncher):
    """Launcher that runs each job in its process group. Hydra's launcher composes the jobs one after the other.

    Args:
        max_parallel: jobs that run at once; they share the cores, or OMP_NUM_THREADS.
    """

    def __init__(self, max_parallel: int) -> None:
        super().__init__()
        self.max_parallel = max_parallel

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Prepare for `launch`; the sweeper calls it once.

        Raises:
            UserError: an option is not usable.
        """
        check("hydra.launcher.max_parallel", self.max_parallel, COUNT)
        self.multirun = Multirun(task_function.command, config.hydra, self.max_parallel)
        prepare: Any = self._prepare
        super().setup(hydra_context=hydra_context, task_function=prepare, config=config)

    def _prepare(self, config: DictConfig) -> MultirunJob:
        try:
            return self.multirun.prepare(config)
        except UserError as error:  # Hydra would go on with the next job
            raise Refusal from error

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch from the sweeper and wait for all its jobs.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            UserError: a folder holds another job, or a job of another text.
        """
        # Hydra must not write into a folder before it is chosen.
        composed = [[*overrides, NO_OUTPUT] for overrides in job_overrides]
        results = super().launch(composed, initial_job_idx)
        jobs = [result.return_value for result in results]
        self.multirun.run(jobs)
        for job, result in zip(jobs, results, strict=True):
            try:
                result.return_value = self.multirun.loss(job)
            except UserError as error:
                CALL.failures.append(f"{job.title}: {error}")
                result.status = JobStatus.FAILED
                result.return_value = error
        return results


def run_job(command: Command, config: DictConfig) -> float | None:
    """Run a job for a launcher that calls the task itself (basic, joblib, submitit), as `ProcessLauncher` does.

    Returns:
        The loss that a search minimizes.

    Raises:
        UserError: the job failed, or its folder holds another one.
    """
    multirun = Multirun(command, HydraConfig.get())
    job = multirun.prepare(config)
    multirun.run([job])
    return multirun.loss(job)


def prepare_wandb(root: Path) -> None:
    """Group a multirun's runs in W&B, each with its id."""
    given = os.environ.pop("WANDB_RUN_ID", None)
    if given is not None:
        notice(
            f"WANDB_RUN_ID={given} is one id, and a multirun has several runs: each gets its own"
        )
    group = str(root).replace("/", "-")
    os.environ.setdefault("WANDB_RUN_GROUP", group[-128:])  # the longest that W&B takes
