"""Job of a multirun: pickled by the launcher, run in a process of its own."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.txl_process_launcher._hydra_internals import add_singletons, as_failed_job, failed_job, job_error
from txl_lightning.distributed.multirun import JobError

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

    def run(self) -> JobReturn:
        """Run the task as `BasicLauncher` does; return a failure and write its traceback to `error.txt`."""
        add_singletons(self.singletons)
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
            done = failed_job(self.overrides, error)
        failure = job_error(done)
        if failure is None:
            (self.directory / ERROR_FILE).unlink(missing_ok=True)  # of an earlier start
            return done
        self._write_traceback(failure)
        return as_failed_job(done, picklable(failure))

    def _write_traceback(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        if self.directory.is_dir():
            (self.directory / ERROR_FILE).write_text(text)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            sys.stderr.write(text)


def picklable(error: BaseException) -> BaseException:
    """Return the error itself if it survives pickling, else a `JobError` with its type and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return JobError(f"{type(error).__name__}: {error}")
    return error
