"""Job of a multirun: pickled by the launcher, run in a process of its own."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from txl_lightning.command_line.multirun import JobError

ERROR_FILE = "error.txt"


@dataclass(frozen=True)
class MultirunJob:
    """One job of a multirun.

    Attributes:
        number: hydra.job.num.
        overrides: overrides of this job alone.
        directory: where it writes.
        config: composed by the launcher, so that the job's process need not compose it.
        singletons: Hydra's, without its plugins and resolvers (functions that cannot be pickled).
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    config: DictConfig
    task: TaskFunction
    hydra_context: HydraContext
    singletons: dict[type, Any]
    needs: tuple[str, ...] = ()
    alone: bool = False

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.number)


def run_pickled(pickled: bytes) -> JobReturn:
    """Run a job in its process as `BasicLauncher` does; return a failure and write its traceback to `error.txt`."""
    Plugins.instance()  # its scan replaces classes, so it precedes code that uses them
    job: MultirunJob = pickle.loads(pickled)
    add_singletons(job.singletons)
    setup_globals()
    try:
        done = run_job(
            hydra_context=job.hydra_context,
            task_function=job.task,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except Exception as error:
        done = returned(job.overrides, error)
    (job.directory / ERROR_FILE).unlink(missing_ok=True)  # of an earlier start
    if (failure := job_error(done)) is None:
        return done
    text = "".join(traceback.format_exception(failure))
    with suppress(OSError):  # a full disk, or no folder
        (job.directory / ERROR_FILE).write_text(text)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        sys.stderr.write(text)
    return FailedJob(**{**vars(done), "_return_value": picklable(failure)})


def picklable(error: BaseException) -> BaseException:
    """Return the error itself if it survives pickling, else a `JobError` with its type and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error


# Private parts of Hydra, each with a test (`tests/hydra_plugins/test_internals.py`).


class FailedJob(JobReturn):
    """Failed job that raises its error without Hydra's extra line: the command reports all failures at once."""

    @property
    def return_value(self) -> Any:
        raise self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


def returned(overrides: Sequence[str], value: Any) -> JobReturn:
    """Return the result of a job that left none itself: an error, or the value of one that finished before."""
    failed = isinstance(value, BaseException)
    kind, status = (FailedJob, JobStatus.FAILED) if failed else (JobReturn, JobStatus.COMPLETED)
    return kind(overrides=overrides, status=status, _return_value=value)


def job_error(done: JobReturn) -> BaseException | None:
    """Return the error of a job, which `JobReturn.return_value` would raise; None for a completed job."""
    return None if done.status == JobStatus.COMPLETED else done._return_value


def add_singletons(instances: dict[type, Any]) -> None:
    """Add instances to Hydra's singletons. The public `set_state` drops the plugins and scans for them again."""
    Singleton._instances.update(instances)
