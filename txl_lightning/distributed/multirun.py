"""A multirun as a whole: its name in W&B, and what its failed jobs say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

# Nothing of Hydra's plugin scan runs this module a second time, so this is the launcher's own list.
from hydra_plugins.txl_process_launcher._outcomes import OUTCOMES, JobError, Outcome

MOST = 100  # exit statuses above mean signals and the shell's own complaints


def multirun_name(directory: str) -> str:
    """The folder of a multirun as one word, the same in all its jobs: `multirun-2026-11-20-12-30-00`."""
    path = Path(directory).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return "-".join(part for part in path.parts if part != path.anchor)[-128:]  # W&B allows that many characters


def failed_jobs() -> list[Outcome]:
    """The jobs of this process's multirun that failed, by their numbers."""
    return sorted((job for job in OUTCOMES if job.error is not None), key=lambda job: job.number)


def report_failed_jobs(command: str, describe: Callable[[BaseException], str]) -> int:
    """Print a line for each failed job and one for all, and return the exit status: how many failed, at most 100."""
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
    return min(len(failed), MOST)
