"""A multirun: the launcher that runs its jobs, `multirun.json` and `multirun.md`, its name in W&B.

`hydra/launcher=process` runs every job in a fresh process and a process group of its own. A single job at a time writes
to the terminal. With `hydra.launcher.max_parallel` above 1 each job writes to `log.txt` in its directory, and the
terminal shows when jobs start and end. Jobs that run at once share the CPU cores equally.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.command_line import JobError, current
from txl_lightning.command_line.messages import one_line
from txl_lightning.distributed.processes import Ended, JobProcess
from txl_lightning.errors import COUNT, MOST, Stopped, at_most, check, cores, notice, require
from txl_lightning.files import locked, write_json, write_text
from txl_lightning.jobs import Jobs, choose_folders, identity, job_folders, of_text, refuse_another_text
from txl_lightning.reporting import markdown_table

log = logging.getLogger(__name__)
JSON_FILE, TABLE_FILE, ERROR_FILE, LOG = "multirun.json", "multirun.md", "error.txt", "log.txt"
LOSSES = tuple(map("/".join, product(("val", "test"), ("nll", "bpc", "ppl", "bpt", "bpb"))))
MAX_EXIT_STATUS = 100  # higher ones mean signals and errors of the shell
MAX_NAME_LENGTH = 128  # of a W&B group


@dataclass
class MultirunJob:
    """One job of a multirun.

    Attributes:
        number: hydra.job.num.
        overrides: overrides of this job alone.
        directory: where it writes.
        config: composed by the launcher, so that the job's process need not compose it.
        task: the `HydraTask`.
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    config: DictConfig
    task: Any
    hydra_context: HydraContext
    needs: tuple[str, ...] = ()
    alone: bool = False

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.number)


def run_pickled(pickled: bytes) -> Any:
    """Run a job in its process as `BasicLauncher` does; return its value, or a `JobError` and write `error.txt`.

    Args:
        pickled: the job, and Hydra's singletons without its plugins and resolvers, which cannot be pickled.
    """
    Plugins.instance()  # its scan replaces classes, so it precedes code that uses them
    job: MultirunJob
    job, singletons = pickle.loads(pickled)
    add_singletons(singletons)
    setup_globals()
    try:
        returned = run_job(
            hydra_context=job.hydra_context,
            task_function=job.task,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )._return_value  # of a failed job its error, which `return_value` would print and raise
    except Exception as error:
        returned = error
    (job.directory / ERROR_FILE).unlink(missing_ok=True)  # of an earlier start
    if not isinstance(returned, Exception):
        return returned
    text = "".join(traceback.format_exception(returned))
    with suppress(OSError):  # a full disk, or no folder
        write_text(job.directory / ERROR_FILE, text)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        sys.stderr.write(text)
    return JobError(one_line(returned, job.task.command.schema), stopped=isinstance(returned, Stopped))


def add_singletons(instances: dict[type, Any]) -> None:
    """Add to Hydra's singletons (private). The public `set_state` drops the plugins and scans for them again."""
    Singleton._instances.update(instances)


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


class ProcessLauncher(Launcher):
    """Launcher that runs each job in a process group of its own; a failed job does not stop the others."""

    def __init__(self, max_parallel: int, threads: int | None, grace_seconds: float) -> None:
        self.max_parallel, self.threads, self.grace_seconds = max_parallel, threads, grace_seconds
        self.call = current()

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Prepare for `launch` of a `HydraTask`; the sweeper calls it once.

        Raises:
            UserError: an option is not usable, or another command writes into the folder of the multirun.
        """
        check("hydra.launcher.max_parallel", self.max_parallel, COUNT)
        check("hydra.launcher.threads", self.threads, COUNT, at_most("threads"))
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
        self.call.lock.enter_context(locked(Path(config.hydra.sweep.dir)))
        self.hydra_context, self.task, self.config = hydra_context, task_function, config

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

        def end(job: MultirunJob, ended: Ended) -> str | None:
            result, line = ended.value, None
            if ended.status != 0:
                log_file = f": see {job.directory / LOG}" if self.max_parallel > 1 and ended.status is not None else ""
                result = JobError(f"{ended.problem}{log_file}", stopped=ended.status is not None and ended.status < 0)
            if isinstance(result, JobError):
                where = f" ({job.directory / ERROR_FILE})" if result is ended.value else ""
                line = f"job {job.number} ({' '.join(job.overrides)}): {result}{where}"
            status = JobStatus.COMPLETED if line is None else JobStatus.FAILED
            done[job.number] = JobReturn(overrides=job.overrides, status=status, _return_value=result)
            self.call.outcomes.append(line)
            write_results(directory)
            value = f": {result}" if line is None and result is not None else ""
            log.info(f"#{job.number} {'failed' if line else 'ended'} after {ended.seconds:.0f} s{value}")
            return line

        Jobs(list(jobs), self._start, end, self.max_parallel, self.grace_seconds).run()
        for error in (ended._return_value for ended in done.values()):  # in the order of their ends
            if isinstance(error, JobError) and (self.is_grid or (error.stopped and self.task.command.resumable)):
                raise error
        return [done[job.number] for job in jobs]

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
                if self.task.command.resumable and of_text(options) not in texts:  # once, not in every job
                    refuse_another_text(root, config)
                    texts.append(of_text(options))
            wanted.append((root / str(config.hydra.sweep.subdir), options))
            own = tuple(filter_overrides(overrides))
            jobs.append(MultirunJob(number, own, wanted[-1][0], config, self.task, self.hydra_context))
        for job, place in zip(jobs, choose_folders(root, wanted) if self.task.command.resumable else (), strict=False):
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
        variables = {**counts, **job.config.hydra.job.env_set}
        modules = [type(self.task).__module__, self.task.command.module]  # imported once by a launcher that forks jobs
        pickled = pickle.dumps((job, Singleton.get_state()["instances"]))
        return JobProcess(run_pickled, pickled, variables=variables, log=log_file, modules=modules)


def report_failed_jobs(command: str, outcomes: Sequence[str | None]) -> int:
    """Print one line for each failed job and a summary; return the exit status: the number of failures, at most 100."""
    failed = [line for line in outcomes if line is not None]
    for line in failed:
        print(f"txl {command}: {line}", file=sys.stderr)
    if failed:
        print(f"txl {command}: {len(failed)} of {len(outcomes)} jobs failed", file=sys.stderr)
    return min(len(failed), MAX_EXIT_STATUS)


def multirun_name(directory: str) -> str:
    """Return a multirun's folder as one word, equal in all of its jobs: `multirun-2026-11-20-12-30-00`."""
    path = Path(directory).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return "-".join(part for part in path.parts if part != path.anchor)[-MAX_NAME_LENGTH:]


def write_results(directory: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from the folders of all jobs, the lowest objective first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        The table's path; None if no folder holds a job, or if the disk is full (reported on stderr).
    """
    jobs = job_folders(directory)
    if not jobs:
        return None
    typed = [_options(job.record) for job in jobs]
    all_names = dict.fromkeys(name for words in typed for name in words)
    names = [name for name in all_names if len({words.get(name) for words in typed}) > 1]  # those that differ
    entries = []
    for job, words in zip(jobs, typed, strict=True):
        metrics, error = job.result or {}, job.record.get("error")
        numbers = {name: metrics.get(name) for name in ("steps", *LOSSES)}
        entry = {
            "job": job.path.relative_to(directory).as_posix(),
            "overrides": {name: words[name] for name in names if name in words},
            "state": "finished" if job.value is not None else "failed" if error is not None else "stopped",
            "objective": job.value,
            "metrics": {name: value for name, value in numbers.items() if isinstance(value, (int, float))},
        }
        entry |= {"ended_by": metrics["ended_by"]} if "ended_by" in metrics else {}
        entries.append({**entry, "error": error} if entry["state"] == "failed" else entry)
    entries.sort(key=lambda entry: (entry["objective"] is None, entry["objective"]))
    try:
        write_json(directory / JSON_FILE, {"objective": jobs[0].record.get("objective"), "jobs": entries})
        write_text(directory / TABLE_FILE, _table(entries, names))
    except OSError as error:  # a full disk must not end the other jobs
        print(f"could not write the results of the multirun: {error}", file=sys.stderr, flush=True)
        return None
    return directory / TABLE_FILE


def _options(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the overrides of a job by name, with the values that interpolations have in it."""
    options = record.get("options", {})
    words = (str(word).partition("=") for word in record.get("overrides", ()))
    typed = {name.lstrip("+~"): value for name, _, value in words}
    return {name: str(options.get(name, value)) if value.startswith("$") else value for name, value in typed.items()}


def _table(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    losses = [name for name in LOSSES if name[-3:] != "nll" and any(name in entry["metrics"] for entry in entries)]
    rows = []
    for entry in entries:
        shown = [f"{entry['metrics'][name]:.4f}" if name in entry["metrics"] else "–" for name in losses]
        by = f" at step {entry['metrics'].get('steps')} by {entry['ended_by']}" if "ended_by" in entry else ""
        rows.append([entry["job"], *(entry["overrides"].get(name, "–") for name in names), *shown, entry["state"] + by])
    return markdown_table(["job", *names, *(name.replace("/", " ") for name in losses), "state"], rows)
