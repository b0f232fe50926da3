"""A job: what the launcher sends into a process of its own, and how it runs there."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.txl_process_launcher._outcomes import FailedJob, JobError


@dataclass(frozen=True)
class Job:
    """One job of a multirun, as it travels to its process.

    Attributes:
        number: hydra.job.num.
        overrides: of this job alone.
        directory: where it writes.
        config: composed by the launcher, so that the process has nothing to compose.
        singletons: Hydra's, without its plugins and resolvers (functions that cannot be pickled).
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    config: DictConfig
    task: TaskFunction
    hydra_context: HydraContext
    singletons: dict[type, Any]

    def run(self) -> JobReturn:
        """Run the task as `BasicLauncher` does; a failure is returned, with its traceback in `error.txt`."""
        Singleton._instances.update(self.singletons)  # `set_state` would drop the plugins and scan for them again
        setup_globals()
        try:
            done = run_job(
                hydra_context=self.hydra_context,
                task_function=self.task,
                config=self.config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        except Exception as error:
            done = JobReturn(overrides=self.overrides, status=JobStatus.FAILED, _return_value=error)
        if done.status == JobStatus.COMPLETED:
            return done
        self.keep_traceback(done._return_value)
        return FailedJob(**{**vars(done), "_return_value": portable(done._return_value)})

    def keep_traceback(self, error: BaseException) -> None:
        """Write it into the job's directory, and where HYDRA_FULL_ERROR=1 asks for it to standard error too."""
        text = "".join(traceback.format_exception(error))
        if self.directory.is_dir():
            (self.directory / "error.txt").write_text(text)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            sys.stderr.write(text)


def portable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error
