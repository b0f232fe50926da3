"""Private parts of Hydra that the launcher needs, one function each (`tests/hydra_plugins/test_internals.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus


class FailedJob(JobReturn):
    """Failed job that raises its error without Hydra's extra line: the command reports all failures at once."""

    @property
    def return_value(self) -> Any:
        raise self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


def failed_job(overrides: Sequence[str], error: BaseException) -> FailedJob:
    """Return the result of a job that left none itself."""
    return FailedJob(overrides=overrides, status=JobStatus.FAILED, _return_value=error)


def as_failed_job(done: JobReturn, error: BaseException) -> FailedJob:
    """Return `done` as a failed job with this error."""
    return FailedJob(**{**vars(done), "_return_value": error})


def completed_job(overrides: Sequence[str], value: Any) -> JobReturn:
    """Return the result of a job that an earlier multirun has finished."""
    return JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=value)


def job_error(done: JobReturn) -> BaseException | None:
    """Return the error of a job, which `JobReturn.return_value` would raise; None for a completed job."""
    return None if done.status == JobStatus.COMPLETED else done._return_value


def add_singletons(instances: Mapping[type, Any]) -> None:
    """Add instances to Hydra's singletons. The public `set_state` drops the plugins and scans for them again."""
    Singleton._instances.update(instances)
