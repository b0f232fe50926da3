"""Launcher of multiruns, `hydra/launcher=process`: every job is the plain command in a fresh process.

    txl train -m seed=1,2   runs   txl train seed=1 hydra.mode=RUN hydra.run.dir=FOLDER/0   and the same with seed=2

A finished job is skipped and a stopped one resumed. A job that fails does not stop the others. One job at a time writes
to the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its folder.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
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
from txl_lightning.errors import COUNT, UserError, at_most, check, cores, notice
from txl_lightning.files import locked
from txl_lightning.job_folder import JobFolder, choose_folder, identity, refuse_another_text
from txl_lightning.jobs import Ended, Jobs, Process, start_job
from txl_lightning.multirun import multirun_name, objective, shared_precision, write_results

log = logging.getLogger(__name__)
LOG = "log.txt"
ERROR_VARIABLE = "TXL_ERROR_FILE"  # names the file into which a job writes its error
ERROR_NAME = "error.txt"


@dataclass
class Call:
    """The call of `txl` in this process: Hydra makes callbacks and launchers from a config, and they share this.

    Attributes:
        sweep_dir: folder of the multirun; None for a single run.
        locks: locks of folders, held until the command ends.
        failures: a line for each job that failed.
    """

    sweep_dir: Path | None = None
    locks: ExitStack = field(default_factory=ExitStack)
    failures: list[str] = field(default_factory=list)


CALL = Call()


@dataclass
class MultirunJob:
    """One job of a multirun.

    Attributes:
        name: its number.
        overrides: overrides of this job alone.
        words: words of the plain command after `txl`.
        folder: where it writes.
    """

    name: str
    overrides: list[str]
    words: list[str]
    folder: JobFolder
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class ProcessLauncherConf:
    """Options `hydra.launcher.…`.

    Attributes:
        max_parallel: number of jobs that run at once; they share the cores, or OMP_NUM_THREADS.
    """

    _target_: str = "hydra_plugins.txl_process_launcher.ProcessLauncher"
    max_parallel: int = 1


class ProcessLauncher(Launcher):
    """Launcher that runs each job in a process group of its own."""

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
        self.objective = self.command.objective
        if self.objective is not None:
            self.objective = objective(config, self.objective)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch of the sweeper's jobs and wait for all of them.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            UserError: the folder holds other jobs.
        """
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        self.root.mkdir(parents=True, exist_ok=True)
        jobs: list[MultirunJob] = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            taken = {job.folder.path for job in jobs}
            jobs.append(self._prepare(number, list(overrides), taken))
        finished = [job for job in jobs if self._value(job) is not None]
        for job in finished:
            log.info(f"#{job.name} has finished before: {job.folder.path}")
        to_run = [job for job in jobs if job not in finished]
        log.info(
            f"{len(to_run)} of {len(jobs)} jobs to run in {self.root}, {self.max_parallel} at once"
        )
        runner = Jobs(to_run, self._start, self._end, self.max_parallel)
        runner.run()
        return [self._return(job, runner.failed.get(job.name)) for job in jobs]

    def _prepare(self, number: int, overrides: list[str], taken: set[Path]) -> MultirunJob:
        """Compose the config of a job as Hydra's own launchers do, and choose its folder."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may refer to it
        folder = JobFolder(self.root / str(config.hydra.sweep.subdir))
        own = list(filter_overrides(overrides))
        words = self._words(number, overrides)
        if self.command.resume:
            precision = shared_precision(self.root, config)
            if precision is not None:
                words.append(f"trainer.precision={precision}")
                config.trainer.precision = precision
            with suppress(OmegaConfBaseException):  # the job itself says which option is wrong
                options = identity(config)
                refuse_another_text(self.root, config)
                folder = JobFolder(choose_folder(self.root, folder.path, options, taken))
                folder.begin(own, options)
            words.append(self.command.resume)
        words.append(f"hydra.run.dir={quoted(str(folder.path))}")
        return MultirunJob(str(number), own, words, folder)

    def _words(self, number: int, overrides: list[str]) -> list[str]:
        """Return the words of a job's command: flags, Hydra's overrides, and the job's."""
        words = [self.command.name]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", str(source.path)]
        words += list(self.config.hydra.overrides.hydra)
        words += overrides
        words += ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id={number}"]
        return words

    def _start(self, job: MultirunJob) -> Process:
        path = job.folder.path
        path.mkdir(parents=True, exist_ok=True)
        (path / ERROR_NAME).unlink(missing_ok=True)
        log_file = None
        if self.max_parallel > 1:
            log_file = path / LOG
        log.info(f"#{job.name} starts: {' '.join(job.overrides)} ({path})")
        return start_job(job.words, self._variables(path), log_file)

    def _variables(self, path: Path) -> dict[str, str]:
        """Return the environment variables of a job."""
        group = os.environ.get("WANDB_RUN_GROUP", multirun_name(str(self.root)))
        variables = {ERROR_VARIABLE: str(path / ERROR_NAME), "WANDB_RUN_GROUP": group}
        if self.max_parallel > 1:
            available = int(os.environ.get("OMP_NUM_THREADS") or cores())
            variables["OMP_NUM_THREADS"] = str(max(1, available // self.max_parallel))
            variables["MKL_NUM_THREADS"] = variables["OMP_NUM_THREADS"]
        return variables

    def _value(self, job: MultirunJob) -> float | None:
        """Return the objective of a finished job; None for a job that has to run."""
        if self.objective is None:
            return None
        return job.folder.value(self.objective)

    def _end(self, job: MultirunJob, ended: Ended) -> str | None:
        """Record how a job ended and write the table; return the error of one that failed."""
        error = None
        if ended.status != 0:
            error = self._error(job, ended)
        elif self.objective is not None and self._value(job) is None:
            error = f"has no {self.objective}, which orders the jobs"
        if error is not None:
            CALL.failures.append(f"job {job.name} ({' '.join(job.overrides)}): {error}")
            if self.command.resume and not ended.is_stopped:
                job.folder.add_error(error)
        write_results(self.root)
        log.info(f"#{job.name} {'failed' if error else 'ended'} after {ended.seconds:.0f} s")
        return error

    def _error(self, job: MultirunJob, ended: Ended) -> str:
        """Return the error of a job in one line: its own line, or how its process ended."""
        own = job.folder.path / ERROR_NAME
        if own.is_file():
            return own.read_text(errors="replace").strip()
        if self.max_parallel > 1:
            return f"{ended.problem}: see {job.folder.path / LOG}"
        return ended.problem

    def _return(self, job: MultirunJob, error: str | None) -> JobReturn:
        """Return what a sweeper reads."""
        if error is not None:
            return JobReturn(
                overrides=job.overrides, status=JobStatus.FAILED, _return_value=UserError(error)
            )
        return JobReturn(
            overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=self._value(job)
        )


def quoted(text: str) -> str:
    """Return a text in the quotes and escapes of Hydra's grammar."""
    escaped = text.replace("${", r"\${").replace("'", r"\'")
    if escaped.endswith("\\"):
        escaped += "\\"
    return f"'{escaped}'"


def report_failures(command: str) -> None:
    """Print one line for each failed job and a summary; end with status 1 if there is one."""
    if not CALL.failures:
        return
    for line in CALL.failures:
        print(f"txl {command}: {line}", file=sys.stderr)
    sys.exit(f"txl {command}: failed jobs: {len(CALL.failures)}")


def run_in_process(
    command: Command, config: DictConfig, settings: DictConfig, run: Any
) -> float | None:
    """Run a job of a launcher that calls the task itself (basic, joblib, submitit); skip or resume it as above.

    Args:
        command: the command.
        config: of the job.
        settings: Hydra's node `hydra`.
        run: runs the command with a config.
    """
    if not command.resume or command.objective is None:
        run(config)
        return None
    root = Path(str(settings.sweep.dir))
    folder = JobFolder(Path(str(settings.runtime.output_dir)))
    whole: Any = HydraConfig.instance().cfg
    name = objective(whole, command.objective)
    with locked(folder.path, wait=True):
        precision = shared_precision(root, config)
        if precision is not None:
            config.trainer.precision = precision
        refuse_another_text(root, config)
        folder.begin(list(settings.overrides.task), identity(config))
        if folder.value(name) is not None:
            return folder.value(name)
        option, _, value = command.resume.partition("=")
        OmegaConf.update(config, option, value)
        try:
            run(config)
        except UserError as error:
            folder.add_error(str(error))
            raise
    return folder.value(name)


def refuse_one_id_for_all() -> None:
    """Drop WANDB_RUN_ID in a multirun, and say so."""
    given = os.environ.pop("WANDB_RUN_ID", None)
    if given is not None:
        notice(
            f"WANDB_RUN_ID={given} is one id, and a multirun has several runs: each gets its own"
        )
