"""Launcher for multiruns, `hydra/launcher=process`: every job is the plain command in a fresh process.

    txl train -m seed=1,2   runs   txl train seed=1 hydra.mode=RUN hydra.run.dir=FOLDER/0   and the same with seed=2

A finished job is skipped and a stopped one resumed. A failed job does not stop the rest. One job at a time writes to
the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its folder.
"""

from __future__ import annotations

import logging
import os
import sys
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
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.commands import Command
from txl_lightning.errors import (
    COUNT,
    OptionError,
    UserError,
    at_most,
    check,
    cores,
    is_first_rank,
    notice,
)
from txl_lightning.files import locked
from txl_lightning.job_folder import JobFolder, choose_folder, identity, refuse_another_text
from txl_lightning.jobs import LOG, Jobs, Process, is_stopped, problem, start_job
from txl_lightning.multirun import NO_ORDER, comparable_loss, shared_precision, write_results

log = logging.getLogger(__name__)
ERROR_VARIABLE = "TXL_ERROR_FILE"  # names the file into which a job writes its error
ERROR_NAME = "error.txt"
MAX_GROUP_LENGTH = 128  # set by W&B


@dataclass
class Call:
    """The `txl` call in this process: Hydra makes callbacks and launchers from a config, and they share this.

    Attributes:
        sweep_dir: the multirun's folder; None for a single run.
        locks: folder locks, held until the command ends.
        failures: a line for each job that failed.
    """

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
        check("hydra.launcher.max_parallel", self.max_parallel, COUNT, at_most("threads"))
        self.hydra_context = hydra_context
        self.command: Command = task_function.command
        self.config = config
        self.root = Path(str(config.hydra.sweep.dir))

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch from the sweeper and wait for all its jobs.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all its jobs.
            UserError: the folder holds other jobs.
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
        own = list(filter_overrides(overrides))
        words = self._words(number, overrides)
        if self.command.resume:
            words.append(self.command.resume)
            try:
                options = identity_in(self.root, config)
                words.append(f"trainer.precision={config.trainer.precision}")
            except (OmegaConfBaseException, OptionError):  # the job itself says which option
                options = {"overrides": own}
            folder = JobFolder(choose_folder(self.root, folder.path, options, taken))
            folder.begin(own, options)
        folder.path.mkdir(parents=True, exist_ok=True)
        return MultirunJob(str(number), own, words, folder)

    def _words(self, number: int, overrides: list[str]) -> list[str]:
        """Return a job's command line: flags, Hydra's overrides, and the job's."""
        words = [self.command.name]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", str(source.path)]
        words += list(self.config.hydra.overrides.hydra)
        words += overrides
        words += ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id={number}"]
        return words

    def _start(self, job: MultirunJob) -> Process:
        folder = job.folder.path
        (folder / ERROR_NAME).unlink(missing_ok=True)
        log.info(f"#{job.name} starts: {' '.join(job.overrides)} ({folder})")
        has_log = self.max_parallel > 1
        return start_job(job.words, folder, self._variables(folder), has_log)

    def _variables(self, folder: Path) -> dict[str, str]:
        """Return a job's environment variables."""
        variables = {ERROR_VARIABLE: str(folder / ERROR_NAME)}
        if self.max_parallel > 1:
            available = int(os.environ.get("OMP_NUM_THREADS") or cores())
            n_threads = str(max(1, available // self.max_parallel))
            variables.update(OMP_NUM_THREADS=n_threads, MKL_NUM_THREADS=n_threads)
        return variables

    def _end(self, job: MultirunJob, process: Process) -> str | None:
        """Record how a job ended and write the table; return the error if it failed."""
        error = None
        if process.status:
            error = self._error(job, process.status)
            if self.command.resume and not is_stopped(process.status):
                job.folder.fail(error)
        write_results(self.root)
        log.info(f"#{job.name} {'failed' if error else 'ended'} after {process.seconds:.0f} s")
        return error

    def _error(self, job: MultirunJob, status: int) -> str:
        """Return a job's error in one line: the line it printed, or how its process ended."""
        own = job.folder.path / ERROR_NAME
        if own.is_file():
            return own.read_text(errors="replace").strip()
        if self.max_parallel > 1:
            return f"{problem(status)}: see {job.folder.path / LOG}"
        return problem(status)

    def _return(self, job: MultirunJob, error: str | None) -> JobReturn:
        """Return what a sweeper reads: a job's loss, or its error."""
        value: Any = None
        if error is None and self.command.objective is not None:
            try:
                value = loss_of_job(self.root, job.folder, self.config.hydra.sweeper)
            except UserError as incomparable:
                error = str(incomparable)
        status = JobStatus.COMPLETED
        if error is not None:
            CALL.failures.append(f"job {job.name} ({' '.join(job.overrides)}): {error}")
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


def identity_in(root: Path, config: DictConfig) -> dict[str, Any]:
    """Return a training's identity in a multirun's folder; `trainer.precision=auto` becomes the shared choice.

    Raises:
        UserError: the folder holds jobs on another text.
    """
    precision = shared_precision(root, config)
    if precision is not None:
        config.trainer.precision = precision
    refuse_another_text(root, config)
    return identity(config)


def report_failures(command: str) -> None:
    """Print one line for each failed job and a summary; end with status 1 if there is one."""
    if not CALL.failures:
        return
    for line in CALL.failures:
        print(f"txl {command}: {line}", file=sys.stderr)
    sys.exit(f"txl {command}: failed jobs: {len(CALL.failures)}")


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
    options = identity_in(root, config)
    folder = JobFolder(choose_folder(root, wanted, options, set()))
    with ExitStack() as lock:
        if is_first_rank():  # SLURM starts this once per rank in a job
            lock.enter_context(locked(folder.path, wait=True))
            folder.begin(list(settings.overrides.task), options)
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
