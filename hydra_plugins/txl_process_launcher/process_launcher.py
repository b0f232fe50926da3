"""`hydra/launcher=process`: every job of a multirun in a fresh process and a process group of its own.

A single job at a time writes to the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt`
in its directory, and the terminal shows when jobs start and end. Jobs that run at once share the CPU cores equally.
"""

# No `from __future__ import annotations`: Hydra's scan executes this module before it is in `sys.modules`, where a
# dataclass resolves annotations that are strings.

import logging
import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.txl_process_launcher._multirun_job import MultirunJob, job_error, returned, run_pickled
from txl_lightning.command_line.multirun import (
    OUTCOMES,
    JobError,
    JobKilledError,
    MultirunTable,
    Outcome,
    write_results,
)
from txl_lightning.errors import MOST, Stopped, check_count, require
from txl_lightning.jobs.folder import JobFolder, JobPlaces, refuse_another_text
from txl_lightning.jobs.identity import identity, of_text
from txl_lightning.jobs.processes import Ended, JobProcess, Jobs
from txl_lightning.reporting.machine import cores

log = logging.getLogger(__name__)


@dataclass
class ProcessLauncherConf:
    """Options `hydra.launcher.…`.

    Attributes:
        max_parallel: number of jobs that run at once.
        threads: per job; null divides the cores (or OMP_NUM_THREADS) by max_parallel.
        grace_seconds: time to save a checkpoint after Ctrl-C; a second Ctrl-C does not wait.
    """

    _target_: str = "hydra_plugins.txl_process_launcher.process_launcher.ProcessLauncher"
    max_parallel: int = 1
    threads: int | None = None
    grace_seconds: float = 60.0


ConfigStore.instance().store(group="hydra/launcher", name="process", node=ProcessLauncherConf, provider="txl_lightning")


def _n_values(override: Override) -> int:
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        return max(0, ceil(((sweep.stop or 0) - (sweep.start or 0)) / sweep.step))
    return len(sweep.list) if isinstance(sweep, ChoiceSweep) else 1


class ProcessLauncher(Launcher):
    """Launcher that runs each job in a process group of its own; a failed job does not stop the others."""

    def __init__(self, max_parallel: int, threads: int | None, grace_seconds: float) -> None:
        self.max_parallel, self.threads, self.grace_seconds = max_parallel, threads, grace_seconds
        self.config: DictConfig
        self.hydra_context: HydraContext
        self.task_function: TaskFunction

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Prepare for `launch`; the sweeper calls it once.

        Raises:
            UserError: an option is not usable, or another command writes into the folder of the multirun.
        """
        for option, value in {"max_parallel": self.max_parallel, "threads": self.threads}.items():
            check_count(f"hydra.launcher.{option}", value)
        if str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):  # it makes a list of the whole grid
            words = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
            longest, n_jobs = max(words, key=_n_values, default=None), prod(map(_n_values, words))
            allowed = f"must be a shorter sweep: the grid has {n_jobs:,} jobs, at most {MOST['jobs']:,} are possible"
            option, _, values = str(longest and longest.input_line).partition("=")
            require(n_jobs <= MOST["jobs"], option, values, allowed)
        MultirunTable.lock.enter_context(JobFolder(Path(config.hydra.sweep.dir)).locked())
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        OUTCOMES.clear()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one batch of the sweeper's jobs and wait for all of them; jobs that have finished before do not run.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            JobKilledError, Stopped: a signal ended a job that can resume, and whose result the sweeper needs.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        places = JobPlaces(directory, initial_job_idx + len(job_overrides))
        jobs = [self._compose(initial_job_idx + i, given, places) for i, given in enumerate(job_overrides)]
        if self._resumable:
            with suppress(OmegaConfBaseException):  # see `_compose`
                for config in {repr(of_text(identity(job.config))): job.config for job in jobs}.values():
                    refuse_another_text(directory, config)
        values = {job.number: JobFolder(job.directory).value for job in jobs}
        done = {job.number: returned(job.overrides, values[job.number]) for job in jobs}
        waiting = [job for job in jobs if values[job.number] is None]
        side_by_side = f", {self.max_parallel} at once" if self.max_parallel > 1 else ""
        before = f", {len(jobs) - len(waiting)} of them finished before" if len(waiting) < len(jobs) else ""
        log.info(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} in {directory}{before}{side_by_side}")

        def end(job: MultirunJob, ended: Ended) -> str | None:
            done[job.number] = ended.value or returned(job.overrides, self._error(job, ended))
            error = job_error(done[job.number])
            OUTCOMES.append(Outcome(job.number, job.overrides, job.directory, error))
            write_results(directory)
            value = "" if error or done[job.number].return_value is None else f": {done[job.number].return_value}"
            log.info(f"#{job.number} {'failed' if error else 'ended'} after {ended.seconds:.0f} s{value}")
            return None if error is None else str(error)

        Jobs(waiting, self._start, end, self.max_parallel, self.grace_seconds).run()
        for error in map(job_error, done.values()):
            if isinstance(error, (JobKilledError, Stopped)) and self._resumable:
                raise error
        return list(done.values())

    @property
    def _resumable(self) -> bool:
        """Whether a job that was stopped resumes when the multirun is started again."""
        return getattr(self.task_function, "resumable", False)

    def _compose(self, number: int, overrides: Sequence[str], places: JobPlaces) -> MultirunJob:
        """Compose the config of a job as `BasicLauncher` does, with the folder that it ran in before."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may refer to it
        root = Path(config.hydra.sweep.dir)
        wanted = directory = root / str(config.hydra.sweep.subdir)
        with suppress(OmegaConfBaseException):  # an option that cannot be resolved: the job itself will say which
            directory = places.choose(wanted, identity(config)) if self._resumable else wanted
        if directory != wanted:
            log.info(f"#{number} is in {directory}: {wanted} is another job's, or this one ran there before")
            with read_write(config.hydra):  # HydraConfig.set_config made it read-only
                config.hydra.sweep.subdir = directory.relative_to(root).as_posix()
        own, singletons = tuple(filter_overrides(overrides)), Singleton.get_state()["instances"]
        return MultirunJob(number, own, directory, config, self.task_function, self.hydra_context, singletons)

    def _start(self, job: MultirunJob, slot: int) -> JobProcess:
        log_file = self._log_file(job)
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
        log.info(f"#{job.number} starts: {' '.join(job.overrides)}" + (f" ({log_file})" if log_file else ""))
        threads = self.threads
        if threads is None and self.max_parallel > 1:
            threads = max(1, int(os.environ.get("OMP_NUM_THREADS") or cores()) // self.max_parallel)
        # The variables from which OpenMP, MKL and so torch take their number of threads.
        counts = {} if threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        variables, modules = {**counts, **job.config.hydra.job.env_set}, getattr(self.task_function, "modules", ())
        return JobProcess(run_pickled, pickle.dumps(job), variables=variables, log=log_file, modules=modules)

    def _log_file(self, job: MultirunJob) -> Path | None:
        return job.directory / "log.txt" if self.max_parallel > 1 else None

    def _error(self, job: MultirunJob, ended: Ended) -> JobError:
        """Describe a process without a result."""
        log_file = self._log_file(job) if ended.status is not None else None
        kind = JobKilledError if ended.status is not None and ended.status < 0 else JobError
        return kind(ended.problem if log_file is None else f"{ended.problem}: see {log_file}")
