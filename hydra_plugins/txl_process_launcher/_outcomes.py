"""What came of the jobs of a multirun."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn


class JobError(Exception):
    """A job ended without a result, or with an error that cannot leave its process."""


class FailedJob(JobReturn):
    """A failed job that raises without the line Hydra would print first: the command reports all failures at once."""

    @property
    def return_value(self) -> Any:
        raise self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


@dataclass(frozen=True)
class Outcome:
    """One job that ended.

    Attributes:
        number: hydra.job.num.
        overrides: of the job, as typed.
        directory: the job's own.
        error: None for a job that returned.
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    error: BaseException | None


OUTCOMES: list[Outcome] = []  # of this process's multirun, whatever its sweeper makes of failures


def died(returncode: int, log: Path | None) -> JobError:
    """What to say about a process that left no result, out of its return code as `subprocess` gives it."""
    if returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        how = "was interrupted"
    elif returncode < 0:
        how = f"was killed by {signal.Signals(-returncode).name}"
    else:
        how = f"ended with exit status {returncode} and no result"
    return JobError(how if log is None else f"{how}: see {log}")
