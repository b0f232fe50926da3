"""Launcher of multiruns, `hydra/launcher=process`: every job in a fresh process and a process group of its own.

A single job at a time writes to the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt`
in its directory, and the terminal shows when jobs start and end. Jobs that run at once share the CPU cores equally.
"""

# Hydra's scan executes this module twice, first before it is in `sys.modules`: no class here is pickled, and there is
# no `from __future__ import annotations`, since a dataclass resolves annotations that are strings in `sys.modules`.

import logging
import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.command_line.multirun import (
    ERROR_FILE,
    OUTCOMES,
    JobError,
    MultirunJob,
    MultirunTable,
    run_pickled,
    write_results,
)
from txl_lightning.distributed.processes import Ended, JobProcess
from txl_lightning.errors import MOST, check_count, cores, notice, require
from txl_lightning.jobs import JobFolder, Jobs, choose_folders, identity, of_text, refuse_another_text

log = logging.getLogger(__name__)
LOG = "log.txt"


@dataclass
class ProcessLauncherConf:
    """Options `hydra.launcher.…`.

    Attributes:
        max_parallel: number of jobs that run at once.
        threads: per job; null divides the cores (or OMP_NUM_THREADS) by max_parallel.
        grace_seconds: time to save a checkpoint after Ctrl-C; a second Ctrl-C does not wait.
    """

    _target_: str = "hydra_plugins.txl_process_launcher.ProcessLauncher"
    max_parallel: int = 1
    threads: int | None = None
    grace_seconds: float = 60.0


ConfigStore.instance().store(group="hydra/launcher", name="process", node=ProcessLauncherConf, provider="txl_lightning")


class ProcessLauncher(Launcher):
    """Launcher that runs each job in a process group of its own; a failed job does not stop the others."""

    def __init__(self, max_parallel: int, threads: int | None, grace_seconds: float) -> None:
        self.max_parallel, self.threads, self.grace_seconds = max_parallel, threads, grace_seconds
        self.config: DictConfig
        self.is_grid: bool
        self.hydra_context: HydraContext
        self.task_function: TaskFunction

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Prepare for `launch`; the sweeper calls it once.

        Raises:
            UserError: an option is not usable, or another command writes into the folder of the multirun.
        """
        for option, value in {"max_parallel": self.max_parallel, "threads": self.threads}.items():
            check_count(f"hydra.launcher.{option}", value)
        self.is_grid = str(config.hydra.sweeper._target_).endswith(".BasicSweeper")
        if self.is_grid:  # the sweeper makes a list of all jobs
            typed: Any = OmegaConf.to_container(config.hydra.overrides.task)  # ${hydra:job.num} has no value yet
            words = OverridesParser.create().parse_overrides(typed)
            words = [word for word in words if isinstance(word.value(), (ChoiceSweep, RangeSweep))]
            lengths = [len(list(islice(word.sweep_iterator(), MOST["jobs"] + 1))) for word in words]
            longest = words[lengths.index(max(lengths))].input_line if words else ""
            allowed = f"must be a shorter sweep: at most {MOST['jobs']:,} jobs are possible"
            option, _, values = str(longest).partition("=")
            require(prod(lengths) <= MOST["jobs"], option, values, allowed)
        MultirunTable.lock.enter_context(JobFolder(Path(config.hydra.sweep.dir)).locked())
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        OUTCOMES.clear()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one batch of the sweeper's jobs and wait for all of them; one that has finished before returns its value.

        Raises:
            KeyboardInterrupt: a signal ended the multirun and all of its jobs.
            JobError: of the first job that failed, in a grid, or that a signal ended and that can resume.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        jobs = self._compose(initial_job_idx, job_overrides)
        side_by_side = f", {self.max_parallel} at once" if self.max_parallel > 1 else ""
        log.info(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} in {directory}{side_by_side}")
        done: dict[int, JobReturn] = {}
        errors: list[JobError] = []

        def end(job: MultirunJob, ended: Ended) -> str | None:
            result, line = ended.value, None
            if ended.status != 0:
                log_file = f": see {job.directory / LOG}" if self.max_parallel > 1 and ended.status is not None else ""
                result = JobError(f"{ended.problem}{log_file}", stopped=ended.status is not None and ended.status < 0)
            if isinstance(result, JobError):
                where = f" ({job.directory / ERROR_FILE})" if result is ended.value else ""
                line = f"job {job.number} ({' '.join(job.overrides)}): {result}{where}"
                errors.append(result)
            status = JobStatus.COMPLETED if line is None else JobStatus.FAILED
            done[job.number] = JobReturn(overrides=job.overrides, status=status, _return_value=result)
            OUTCOMES.append(line)
            write_results(directory)
            text = "failed" if line is not None else "ended"
            value = "" if line is not None or result is None else f": {result}"
            log.info(f"#{job.number} {text} after {ended.seconds:.0f} s{value}")
            return line

        Jobs(list(jobs), self._start, end, self.max_parallel, self.grace_seconds).run()
        for error in errors:
            if self.is_grid or (error.stopped and self._resumable):
                raise error
        return [done[job.number] for job in jobs]

    @property
    def _resumable(self) -> bool:
        """Whether a job that was stopped resumes when the multirun is started again."""
        return getattr(self.task_function, "resumable", False)

    def _compose(self, first: int, job_overrides: Sequence[Sequence[str]]) -> list[MultirunJob]:
        """Compose the config of each job as `BasicLauncher` does, with the folder that it ran in before."""
        root = Path(self.config.hydra.sweep.dir)
        jobs, wanted, texts = list[MultirunJob](), list[tuple[Path, dict[str, Any]]](), list[dict[str, Any]]()
        for number, overrides in enumerate(job_overrides, first):
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may refer to it
            if "/" in (dirname := config.hydra.job.override_dirname) and dirname in str(config.hydra.sweep.subdir):
                notice(f"hydra.sweep.subdir has a value with a slash: folders of jobs are nested, as {dirname}")
            options: dict[str, Any] = {"number": number}
            with suppress(OmegaConfBaseException):  # an option that cannot be resolved: the job itself will say which
                options = identity(config)
                if self._resumable and of_text(options) not in texts:  # once, not in every job
                    refuse_another_text(root, config)
                    texts.append(of_text(options))
            wanted.append((root / str(config.hydra.sweep.subdir), options))
            own, task = tuple(filter_overrides(overrides)), self.task_function
            jobs.append(MultirunJob(number, own, wanted[-1][0], config, task, self.hydra_context))
        for job, place in zip(jobs, choose_folders(root, wanted) if self._resumable else (), strict=False):
            if place != job.directory:
                log.info(f"#{job.number} is in {place}: {job.directory} is another job's, or this one ran there before")
                with read_write(job.config.hydra):  # HydraConfig.set_config made it read-only
                    job.config.hydra.sweep.subdir = place.relative_to(root).as_posix()
                job.directory = place
        return jobs

    def _start(self, job: MultirunJob, slot: int) -> JobProcess:
        log_file = job.directory / LOG if self.max_parallel > 1 else None
        job.directory.mkdir(parents=True, exist_ok=True)
        log.info(f"#{job.number} starts: {' '.join(job.overrides)}" + (f" ({log_file})" if log_file else ""))
        threads = self.threads
        if threads is None and self.max_parallel > 1:
            threads = max(1, int(os.environ.get("OMP_NUM_THREADS") or cores()) // self.max_parallel)
        # The variables from which OpenMP, MKL and so torch take their number of threads.
        counts = {} if threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        variables, modules = {**counts, **job.config.hydra.job.env_set}, getattr(self.task_function, "modules", ())
        pickled = pickle.dumps((job, Singleton.get_state()["instances"]))
        return JobProcess(run_pickled, pickled, variables=variables, log=log_file, modules=modules)
