"""Job of a multirun: pickled by the launcher, run in a process of its own."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from txl_lightning.command_line.multirun import JobError
from txl_lightning.errors import Stopped

ERROR_FILE = "error.txt"


@dataclass
class MultirunJob:
    """One job of a multirun.

    Attributes:
        number: hydra.job.num.
        overrides: overrides of this job alone.
        directory: where it writes.
        config: composed by the launcher, so that the job's process need not compose it.
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    config: DictConfig
    task: TaskFunction
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
    value, error = None, None
    try:
        done = run_job(
            hydra_context=job.hydra_context,
            task_function=job.task,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if done.status == JobStatus.COMPLETED:
            value = done._return_value
        else:  # `return_value` would print a line and raise it
            error = done._return_value
    except Exception as raised:
        error = raised
    (job.directory / ERROR_FILE).unlink(missing_ok=True)  # of an earlier start
    if error is None:
        return value
    text = "".join(traceback.format_exception(error))
    with suppress(OSError):  # a full disk, or no folder
        (job.directory / ERROR_FILE).write_text(text)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        sys.stderr.write(text)
    describe = getattr(job.task, "describe", lambda error: f"{type(error).__name__}: {error}")
    return JobError(describe(error), stopped=isinstance(error, Stopped))


def add_singletons(instances: dict[type, Any]) -> None:
    """Add to Hydra's singletons (private). The public `set_state` drops the plugins and scans for them again."""
    Singleton._instances.update(instances)
