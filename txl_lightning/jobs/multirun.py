"""Results of the jobs of a multirun, and its name in W&B."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_EXIT_STATUS = 100  # higher ones mean signals and errors of the shell
MAX_NAME_LENGTH = 128  # of a W&B group


class JobError(Exception):
    """A job ended without a result, or with an error that cannot be pickled."""


class JobKilledError(JobError):
    """A signal killed the process of a job, which continues when the multirun is started again."""


@dataclass(frozen=True)
class Outcome:
    """Result of one job.

    Attributes:
        number: hydra.job.num.
        overrides: overrides of the job, as typed.
        directory: run directory of the job.
        error: None for a job that returned.
    """

    number: int
    overrides: tuple[str, ...]
    directory: Path
    error: BaseException | None


# Outcomes of this process's multirun, filled by the launcher. Sweepers hide failed jobs in different ways.
OUTCOMES: list[Outcome] = []


def multirun_name(directory: str) -> str:
    """Return a multirun's folder as one word, equal in all of its jobs: `multirun-2026-11-20-12-30-00`."""
    path = Path(directory).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return "-".join(part for part in path.parts if part != path.anchor)[-MAX_NAME_LENGTH:]


def failed_jobs() -> list[Outcome]:
    """Return the failed jobs of this process's multirun, ordered by number."""
    return sorted((job for job in OUTCOMES if job.error is not None), key=lambda job: job.number)


def report_failed_jobs(command: str, describe: Callable[[BaseException], str]) -> int:
    """Print one line for each failed job and a summary; return the exit status: the number of failures, at most 100."""
    failed = failed_jobs()
    for job in failed:
        assert job.error is not None
        traceback = job.directory / "error.txt"
        where = f" ({traceback})" if traceback.is_file() and not isinstance(job.error, JobError) else ""
        print(
            f"txl {command}: job {job.number} ({' '.join(job.overrides)}): {describe(job.error)}{where}",
            file=sys.stderr,
        )
    if failed:
        print(f"txl {command}: {len(failed)} of {len(OUTCOMES)} jobs failed", file=sys.stderr)
    return min(len(failed), MAX_EXIT_STATUS)
