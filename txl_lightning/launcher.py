"""Launcher for multiruns, `hydra/launcher=process`: every job is the plain command in a fresh process.

    txl train -m seed=1,2   runs   txl train seed=1 hydra.mode=RUN hydra.run.dir=FOLDER/0   and the same with seed=2

A finished job is skipped and a stopped one resumed. A failed job does not stop the rest. One job at a time writes to
the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from txl_lightning.errors import COUNT, UserError, check, cores, is_first_rank, notice
from txl_lightning.files import locked
from txl_lightning.jobs import LOG, Jobs, Process, problem, start_job
from txl_lightning.multirun import (
    JobFolder,
    choose_folder,
    identity,
    loss_of_job,
    refuse_another_text,
    shared_precision,
    write_results,
)
from txl_lightning.registry import Command

log = logging.getLogger(__name__)
MAX_GROUP_LENGTH = 128  # of W&B


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


@dataclass
class MultirunJob:
    """One job in a multirun.

    Attributes:
        name: its folder: equal jobs share one.
        title: its number and overrides.
        words: the plain command after `txl`.
    """

    name: str
    title: str
    words: list[str]
    folder: JobFolder
    needs: tuple[str, ...] = ()
    alone: bool = False


class ProcessLauncher(Launcher):
    """Launcher that runs each job in its process group.

    Args:
        max_parallel: jobs that run at once; they share the cores, or OMP_NUM_THREADS.
    """

    def __init__(self, max_parallel: int) -> None:
        self.max_parallel = max_parallel

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Prepare for `launch`; the sweeper calls it once.

        Raises:
            UserError: an option is not usable.
        """
        check("hydra.launcher.max_parallel", self.max_parallel, COUNT)
        self.loader = hydra_context.config_loader
        self.command: Command = task_function.command
        self.config = config
        self.root = Path(str(config.hydra.sweep.dir))
        self.is_search = is_search(config.hydra)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch from the sweeper and wait for all its jobs.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            UserError: a folder holds another job, or a job of another text.
        """
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = []
        to_run = {}
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            job = self._prepare(number, list(overrides))
            jobs.append(job)
            if self.command.resume and job.folder.result:
                log.info(f"{job.title} has finished before: {job.name}")
            else:
                to_run[job.name] = job
        n_jobs = f"{len(to_run)} of {len(jobs)} jobs to run in {self.root}"
        log.info(f"{n_jobs}, {self.max_parallel} at once")
        runner = Jobs(list(to_run.values()), self._start, self._end, self.max_parallel)
        try:
            runner.run()
        except KeyboardInterrupt as stopped:
            again = f"to continue, repeat the command with hydra.sweep.dir={self.root}"
            raise KeyboardInterrupt(*stopped.args, again) from None
        results = []
        for job, overrides in zip(jobs, job_overrides, strict=True):
            value: Any = None
            status = JobStatus.COMPLETED
            try:
                if job.name in runner.failed:
                    raise UserError(runner.failed[job.name])
                if self.command.resume:
                    value = loss_of_job(self.root, job.folder, self.is_search)
            except UserError as error:
                CALL.failures.append(f"{job.title}: {error}")
                status = JobStatus.FAILED
                value = error
            results.append(JobReturn(overrides=overrides, status=status, _return_value=value))
        return results

    def _prepare(self, number: int, overrides: list[str]) -> MultirunJob:
        """Compose a job's config as Hydra's launchers do, and choose its folder."""
        config = self.loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may refer to it
            folder = JobFolder(self.root / str(config.hydra.sweep.subdir))
            del config["hydra"]
        words = [self.command.name]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", str(source.path)]
        words += [*self.config.hydra.overrides.hydra, *overrides]
        words += ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id={number}"]
        own = list(filter_overrides(overrides))
        if self.command.resume:
            folder = folder_of_job(self.root, folder.path, config, own, self.is_search)
            words += [self.command.resume, f"trainer.precision={config.trainer.precision}"]
        folder.path.mkdir(parents=True, exist_ok=True)
        return MultirunJob(str(folder.path), f"job {number} ({' '.join(own)})", words, folder)

    def _start(self, job: MultirunJob) -> Process:
        log.info(f"{job.title} starts in {job.name}")
        with locked(job.folder.path, wait=True):  # the job of a killed multirun ends in seconds
            variables = {"HYDRA_FULL_ERROR": "0"}  # this process has set it to 1
        if self.max_parallel > 1:
            available = int(os.environ.get("OMP_NUM_THREADS") or cores())
            variables["OMP_NUM_THREADS"] = str(max(1, available // self.max_parallel))
        return start_job(job.words, job.folder.path, variables, has_log=self.max_parallel > 1)

    def _end(self, job: MultirunJob, process: Process) -> str | None:
        """Write the table; return the job's error if it failed."""
        with suppress(OSError):  # a full disk must not end the other jobs
            write_results(self.root)
        log.info(f"{job.title} ended after {process.seconds:.0f} s")
        if not process.returncode:
            return None
        error = problem(process.returncode)
        if self.max_parallel > 1:
            error += f": see {job.folder.path / LOG}"
        return job.folder.record.get("error", error)


def is_search(settings: Any) -> bool:
    """Return whether a sweeper that reads losses chooses the jobs.

    Args:
        settings: Hydra's node `hydra`.
    """
    return not settings.sweeper._target_.endswith("BasicSweeper")


def folder_of_job(
    root: Path, wanted: Path, config: DictConfig, overrides: list[str], is_search: bool
) -> JobFolder:
    """Choose the folder of a training in a multirun and record the job in it.

    Replaces `trainer.precision=auto` in the config by the choice that all jobs share.

    Raises:
        UserError: the folder holds another job, or the multirun's folder jobs of another text.
    """
    config.trainer.precision = shared_precision(root, config)
    options = identity(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    refuse_another_text(root, config, options)
    folder = choose_folder(root, wanted, options, is_search)
    if is_first_rank():  # SLURM starts the task for each rank of a job
        overrides = folder.record.get("overrides", overrides)
        folder.write(overrides=overrides, options=options)
    return folder


def run_in_process(
    command: Command,
    config: DictConfig,
    settings: DictConfig,
    run: Callable[[DictConfig, Path], None],
) -> float | None:
    """Run a job for a launcher that calls the task itself (basic, joblib, submitit); skip or resume it as above.

    Args:
        command: the command.
        config: the job's config.
        settings: Hydra's node `hydra`.
        run: runs the command with a config in a folder.
    """
    wanted = Path(str(settings.runtime.output_dir))
    if not command.resume:
        run(config, wanted)
        return None
    root = Path(settings.runtime.cwd, str(settings.sweep.dir))  # also with hydra.job.chdir
    words = list(settings.overrides.task)
    folder = folder_of_job(root, wanted, config, words, is_search(settings))
    with ExitStack() as lock:
        if is_first_rank():
            lock.enter_context(locked(folder.path, wait=True))
        if not folder.result:
            option, _, value = command.resume.partition("=")
            OmegaConf.update(config, option, value)
            try:
                run(config, folder.path)
            except UserError as error:
                folder.fail(str(error))
                raise
    if not is_first_rank():  # which may not have written its result yet
        return None
    return loss_of_job(root, folder, is_search(settings))


def prepare_wandb(root: Path) -> None:
    """Group a multirun's runs in W&B, each with its id."""
    given = os.environ.pop("WANDB_RUN_ID", None)
    if given is not None:
        notice(
            f"WANDB_RUN_ID={given} is one id, and a multirun has several runs: each gets its own"
        )
    group = str(root).replace("/", "-")
    os.environ.setdefault("WANDB_RUN_GROUP", group[-MAX_GROUP_LENGTH:])
