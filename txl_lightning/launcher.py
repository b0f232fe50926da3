"""Launcher for multiruns, `hydra/launcher=process`: every job is the plain command in a fresh process.

    txl train -m seed=1,2   runs   txl train seed=1 hydra.mode=RUN hydra.run.dir=FOLDER/0   and the same with seed=2

A finished job is skipped and a stopped one resumed. A failed job does not stop the rest. One job at a time writes to
the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from txl_lightning.commands import Command
from txl_lightning.config.schemas import typed
from txl_lightning.errors import COUNT, UserError, check, cores, is_first_rank, notice
from txl_lightning.files import locked, write_json
from txl_lightning.job_folder import (
    JobFolder,
    choose_folder,
    identity,
    job_folders,
    options_of_text,
    read_json,
)
from txl_lightning.jobs import LOG, Jobs, Process, problem, start_job
from txl_lightning.multirun import NO_ORDER, comparable_loss, write_results

log = logging.getLogger(__name__)
PRECISION_FILE = "precision.json"
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
        name: its number.
        overrides: this job's overrides only.
        words: the plain command after `txl`.
        folder: where it writes.
    """

    name: str
    overrides: list[str]
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
        self.hydra_context = hydra_context
        self.command: Command = task_function.command
        self.config = config
        self.root = Path(str(config.hydra.sweep.dir))

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch from the sweeper and wait for all its jobs.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            UserError: the folder holds jobs of another text.
        """
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs: list[MultirunJob] = []
        to_run: list[MultirunJob] = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            taken = {job.folder.path for job in jobs}
            job = self._prepare(number, list(overrides), taken)
            jobs.append(job)
            if self.command.resume and job.folder.result:
                log.info(f"#{job.name} has finished before: {job.folder.path}")
            else:
                to_run.append(job)
        n_jobs = f"{len(to_run)} of {len(jobs)} jobs to run in {self.root}"
        log.info(f"{n_jobs}, {self.max_parallel} at once")
        runner = Jobs(to_run, self._start, self._end, self.max_parallel)
        runner.run()
        return [self._return(job, runner.failed.get(job.name)) for job in jobs]

    def _prepare(self, number: int, overrides: list[str], taken: set[Path]) -> MultirunJob:
        """Compose a job's config as Hydra's launchers do, and choose its folder."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may refer to it
        folder = JobFolder(self.root / str(config.hydra.sweep.subdir))
        words = [self.command.name]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", str(source.path)]
        words += [*self.config.hydra.overrides.hydra, *overrides]
        words += ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id={number}"]
        own = list(filter_overrides(overrides))
        if self.command.resume:
            folder = folder_of_job(self.root, folder.path, config, own, taken)
            words += [self.command.resume, f"trainer.precision={config.trainer.precision}"]
        folder.path.mkdir(parents=True, exist_ok=True)
        return MultirunJob(str(number), own, words, folder)

    def _start(self, job: MultirunJob) -> Process:
        folder = job.folder.path
        overrides = " ".join(job.overrides)
        log.info(f"#{job.name} starts: {overrides} ({folder})")
        with locked(folder, wait=True):  # the job of a killed multirun ends within seconds
            variables = {"HYDRA_FULL_ERROR": "0"}  # this process has set it to 1
        if self.max_parallel > 1:
            available = int(os.environ.get("OMP_NUM_THREADS") or cores())
            variables["OMP_NUM_THREADS"] = str(max(1, available // self.max_parallel))
        return start_job(job.words, folder, variables, has_log=self.max_parallel > 1)

    def _end(self, job: MultirunJob, process: Process) -> str | None:
        """Record how a job ended and write the table; return the error if it failed."""
        error = None
        if process.status:
            error = job.folder.record.get("error")
            if error is None:
                error = problem(process.status)
                if self.max_parallel > 1:
                    error += f": see {job.folder.path / LOG}"
        write_results(self.root)
        log.info(f"#{job.name} ended after {process.seconds:.0f} s")
        return error

    def _return(self, job: MultirunJob, error: str | None) -> JobReturn:
        """Return what a sweeper reads: a job's loss, or its error."""
        value: Any = None
        if error is None and self.command.resume:
            try:
                value = loss_of_job(self.root, job.folder, self.config.hydra.sweeper)
            except UserError as incomparable:
                error = str(incomparable)
        status = JobStatus.COMPLETED
        if error is not None:
            overrides = " ".join(job.overrides)
            CALL.failures.append(f"job {job.name} ({overrides}): {error}")
            status = JobStatus.FAILED
            value = UserError(error)
        return JobReturn(overrides=job.overrides, status=status, _return_value=value)


def loss_of_job(root: Path, folder: JobFolder, sweeper: DictConfig) -> float | None:
    """Return the loss that a search minimizes; None for a grid whose losses have no order.

    Raises:
        UserError: a search would minimize losses that cannot be compared.
    """
    name = comparable_loss(root)
    if name is not None:
        return float(folder.result[name])
    if sweeper._target_.endswith(".BasicSweeper"):
        return None
    raise UserError(NO_ORDER)


def folder_of_job(
    root: Path, wanted: Path, config: DictConfig, overrides: list[str], taken: set[Path]
) -> JobFolder:
    """Choose the folder of a training in a multirun and record the job in it.

    Replaces `trainer.precision=auto` in the config by the choice that all jobs share.

    Raises:
        UserError: the folder of the multirun holds jobs of another text.
    """
    task = without_hydra(config)
    precision = shared_precision(root, task)
    config.trainer.precision = task.trainer.precision = precision
    options = identity(OmegaConf.to_container(task, resolve=True))  # type: ignore[arg-type]
    refuse_another_text(root, task, options)
    folder = JobFolder(choose_folder(root, wanted, options, taken))
    if is_first_rank():  # SLURM starts the task for each rank of a job
        overrides = folder.record.get("overrides", overrides)
        folder.write(overrides=overrides, options=options)
    return folder


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a copy of a job's config without Hydra's settings."""
    task = config.copy()
    with open_dict(task):
        task.pop("hydra", None)
    return task


def shared_precision(root: Path, config: DictConfig) -> str:
    """Return the precision of a job; for `trainer.precision=auto` one choice for all jobs.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        root: folder of the multirun.
        config: of a job.
    """
    if config.trainer.precision != "auto":
        return str(config.trainer.precision)
    known = read_json(root / PRECISION_FILE)
    if not known:
        from txl_lightning.evaluation.hardware import (  # imports torch
            resolve_accelerator,
            resolve_precision,
        )

        resolved = resolve_precision(resolve_accelerator(typed(config)))
        known = {"trainer.precision": resolved.trainer.precision}
        root.mkdir(parents=True, exist_ok=True)
        write_json(root / PRECISION_FILE, known)
    return str(known["trainer.precision"])


def refuse_another_text(root: Path, config: DictConfig, options: dict[str, Any]) -> None:
    """Refuse a job whose text has changed since jobs ended in the folder of its multirun.

    Args:
        root: folder of the multirun.
        config: config of the job.
        options: its identity.

    Raises:
        UserError: a table would have losses of two texts, or the text cannot be read.
    """
    for job in job_folders(root):
        corpus = job.result.get("corpus")
        if corpus is None or options_of_text(job.options) != options_of_text(options):
            continue
        from txl_lightning.data.corpus import corpus_source  # imports numpy

        _, now = corpus_source(typed(config.data))
        if corpus["sha256"] != now:
            other = f"{job.path} used another text than data={config.data.name} has now"
            raise UserError(f"{other}: choose another hydra.sweep.dir, or delete the old jobs")
        return  # the other jobs were compared with this one


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
    root = Path(str(settings.sweep.dir))
    folder = folder_of_job(root, wanted, config, list(settings.overrides.task), set())
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
    return loss_of_job(root, folder, settings.sweeper)


def prepare_wandb(root: Path) -> None:
    """Group a multirun's runs in W&B, each with its id."""
    given = os.environ.pop("WANDB_RUN_ID", None)
    if given is not None:
        notice(
            f"WANDB_RUN_ID={given} is one id, and a multirun has several runs: each gets its own"
        )
    group = str(root).strip("/").replace("/", "-")
    os.environ.setdefault("WANDB_RUN_GROUP", group[-MAX_GROUP_LENGTH:])
