"""A multirun: its jobs as the launcher sends them to processes, `multirun.json` and `multirun.md`, its name in W&B."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

from txl_lightning.errors import Stopped, UserError
from txl_lightning.files import write_json, write_text
from txl_lightning.jobs import JobFolder, job_folders
from txl_lightning.reporting.tables import markdown_table

JSON_FILE, TABLE_FILE, ERROR_FILE = "multirun.json", "multirun.md", "error.txt"
LOSSES = tuple(f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", "bpc", "ppl", "bpt", "bpb"))
MAX_EXIT_STATUS = 100  # higher ones mean signals and errors of the shell
MAX_NAME_LENGTH = 128  # of a W&B group


class JobError(Exception):
    """Error of a job in one line, sent by its process.

    Attributes:
        stopped: whether a signal ended the job, which continues when the multirun is started again.
    """

    def __init__(self, text: str, stopped: bool = False) -> None:
        super().__init__(text, stopped)
        self.stopped = stopped

    def __str__(self) -> str:
        return str(self.args[0])


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
        write_text(job.directory / ERROR_FILE, text)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        sys.stderr.write(text)
    describe = getattr(job.task, "describe", lambda error: f"{type(error).__name__}: {error}")
    return JobError(describe(error), stopped=isinstance(error, Stopped))


def add_singletons(instances: dict[type, Any]) -> None:
    """Add to Hydra's singletons (private). The public `set_state` drops the plugins and scans for them again."""
    Singleton._instances.update(instances)


# A line for each job of this process's multirun that failed, and None for each other one, filled by the launcher.
OUTCOMES: list[str | None] = []


def report_failed_jobs(command: str) -> int:
    """Print one line for each failed job and a summary; return the exit status: the number of failures, at most 100."""
    failed = [line for line in OUTCOMES if line is not None]
    for line in failed:
        print(f"txl {command}: {line}", file=sys.stderr)
    if failed:
        print(f"txl {command}: {len(failed)} of {len(OUTCOMES)} jobs failed", file=sys.stderr)
    return min(len(failed), MAX_EXIT_STATUS)


def multirun_name(directory: str) -> str:
    """Return a multirun's folder as one word, equal in all of its jobs: `multirun-2026-11-20-12-30-00`."""
    path = Path(directory).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return "-".join(part for part in path.parts if part != path.anchor)[-MAX_NAME_LENGTH:]


class MultirunTable(Callback):
    """Hydra callback that remembers the folder of a multirun, whose results are written at the end.

    Attributes:
        directory: folder of this process's last multirun; None if there was none.
        run_directory: folder of its last run, for errors; None if there was none.
        lock: holds the lock of this folder, once the launcher is set up.
    """

    directory: Path | None = None
    run_directory: Path | None = None
    lock = ExitStack()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Keep Hydra, which writes before the command does, from a folder that another command holds."""
        MultirunTable.run_directory = Path(str(config.hydra.run.dir))
        try:
            with JobFolder(MultirunTable.run_directory).locked() if config.hydra.output_subdir else nullcontext():
                pass
        except (UserError, OSError):  # the command will say it
            with read_write(config.hydra):
                config.hydra.output_subdir = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        MultirunTable.directory = Path(str(config.hydra.sweep.dir))


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
