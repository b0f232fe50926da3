"""`hydra/launcher=process`: every job of a multirun in a fresh process and a process group of its own.

One job at a time has the terminal; with `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its
directory, and the terminal shows when jobs start and end. The cores are divided among the jobs that run side by side.
"""

# No `from __future__ import annotations`: Hydra's scan executes this module before it is in `sys.modules`, where a
# dataclass looks up annotations that are strings.

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.txl_process_launcher._job import Job
from hydra_plugins.txl_process_launcher._outcomes import OUTCOMES, Outcome
from hydra_plugins.txl_process_launcher._processes import JobProcess, run_all

log = logging.getLogger(__name__)


@dataclass
class ProcessLauncherConf:
    """Options `hydra.launcher.…`.

    Attributes:
        max_parallel: jobs that run side by side.
        threads: of every job; null divides the cores (or OMP_NUM_THREADS) by max_parallel.
        grace_seconds: for saving a checkpoint after Ctrl-C; a second Ctrl-C does not wait.
    """

    _target_: str = "hydra_plugins.txl_process_launcher.process_launcher.ProcessLauncher"
    max_parallel: int = 1
    threads: int | None = None
    grace_seconds: float = 60.0


ConfigStore.instance().store(group="hydra/launcher", name="process", node=ProcessLauncherConf, provider="txl_lightning")


class ProcessLauncher(Launcher):
    """Runs the jobs of a multirun, each in a process group of its own; a failed job does not stop the others."""

    def __init__(self, max_parallel: int, threads: int | None, grace_seconds: float) -> None:
        self.max_parallel, self.threads, self.grace_seconds = max_parallel, threads, grace_seconds
        self.config: DictConfig
        self.hydra_context: HydraContext
        self.task_function: TaskFunction

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by the sweeper, once, before any `launch`.

        Raises:
            HydraException: an option is not usable.
        """
        for option, value in {"max_parallel": self.max_parallel, "threads": self.threads}.items():
            if value is not None and value < 1:
                raise HydraException(f"hydra.launcher.{option}={value}: must be an integer >= 1")
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        OUTCOMES.clear()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one batch of the sweeper's and wait for all of it.

        Raises:
            KeyboardInterrupt: the multirun was asked to end, and all jobs have.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        singletons = Singleton.get_state()["instances"]
        jobs = [self.job(initial_job_idx + i, given, singletons) for i, given in enumerate(job_overrides)]
        side_by_side = f", {self.max_parallel} at once" if self.max_parallel > 1 else ""
        log.info(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} in {self.config.hydra.sweep.dir}{side_by_side}")
        return run_all(jobs, self.start, self.max_parallel, self.grace_seconds, self.ended)

    def job(self, number: int, overrides: Sequence[str], singletons: dict[type, object]) -> Job:
        """A job with its configuration, composed as `BasicLauncher` does."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(config)  # the directory's name may ask for it
        try:
            directory = Path(str(OmegaConf.select(config, "hydra.sweep.dir"))) / str(config.hydra.sweep.subdir)
        finally:
            HydraConfig.instance().cfg = before
        own = tuple(filter_overrides(overrides))
        return Job(number, own, directory, config, self.task_function, self.hydra_context, singletons)

    def start(self, job: Job) -> JobProcess:
        """Start a job's process."""
        path = job.directory / "log.txt" if self.max_parallel > 1 else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        log.info(f"#{job.number} starts: {' '.join(job.overrides)}" + (f" ({path})" if path else ""))
        environment = {**os.environ, **self.thread_counts(), **job.config.hydra.job.env_set}
        if path is not None:
            environment["PYTHONUNBUFFERED"] = "1"  # a log is there to be followed
        return JobProcess(job, environment, path)

    def thread_counts(self) -> dict[str, str]:
        """The variables that OpenMP and MKL, and so torch, read; nothing where a job may use what it finds."""
        threads = self.threads
        if threads is None and self.max_parallel > 1:
            cores = int(os.environ.get("OMP_NUM_THREADS") or available_cores())
            threads = max(1, cores // self.max_parallel)
        return {} if threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))

    def ended(self, job: Job, seconds: float, done: JobReturn) -> None:
        """Say how a job ended, and remember it for the command's exit status."""
        error = None if done.status == JobStatus.COMPLETED else done._return_value
        OUTCOMES.append(Outcome(job.number, job.overrides, job.directory, error))
        value = "" if error or done.return_value is None else f": {done.return_value}"
        log.info(f"#{job.number} {'failed' if error else 'is done'} after {seconds:.0f} s{value}")


def available_cores() -> int:
    """Cores that this process may use; where a system does not say, all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
