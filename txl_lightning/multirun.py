"""Jobs of a multirun: their identity, their folders, their table, and what a search minimizes.

A job has an identity: everything that its numbers depend on. Its folder holds a lock, the record `job.json` with the
identity under `options`, and the result, written last. A program that starts jobs again compares identities and runs
only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.schemas import flat, typed
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.reporting import markdown_table

RECORD = "job.json"
JSON_FILE = "multirun.json"
TABLE_FILE = "multirun.md"
PRECISION_FILE = "precision.json"
BITS_PER_BYTE = "val/bpb"
SEEDS = ("seed", "data.seed")
# Options that say how and where a job runs and what it leaves. They change no number.
WITHOUT_INFLUENCE = (
    "logger.",
    "tags.",
    "task_name.",
    "resume.",
    "ckpt_path.",
    "checkpoint.every_n_steps.",
    "data.root.",
    "data.cache_dir.",
    "trainer.progress_bar.",
    "trainer.log_every_n_steps.",
)
# Options in the group `data` that do not change the text.
NOT_OF_THE_TEXT = ("data.batch_size", "data.segment_len", "data.seed", "data.random_start")
NO_ORDER = (
    "The jobs read different texts, or have different tokens and not all of them bits per byte: their losses cannot be "
    "compared, and the table has no order."
)


# Folders


@dataclass(frozen=True)
class JobFolder:
    """Folder for one job.

    Args:
        path: the folder.
        result_file: the file that the job writes last.
    """

    path: Path
    result_file: str = "metrics.json"

    @property
    def record(self) -> dict[str, Any]:
        """The record's content; {} without one."""
        return read_json(self.path / RECORD)

    @property
    def result(self) -> dict[str, Any]:
        """The result's content; {} before the job has finished, or if a full disk has cut it off."""
        return read_json(self.path / self.result_file)

    @property
    def options(self) -> dict[str, Any]:
        """Identity in the record; {} without one."""
        return self.record.get("options", {})

    def write(self, **record: Any) -> None:
        """Write the record."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / RECORD, record)

    def fail(self, error: str) -> None:
        """Add the error that ended the job, in one line, to the record, if there is one."""
        record = self.record
        if record:
            record["error"] = error
            with suppress(OSError):  # a full disk
                self.write(**record)


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file; {} if there is none, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return {}


def job_folders(root: Path) -> list[JobFolder]:
    """Return a multirun's job folders, ordered by number."""
    folders = [record.parent for record in root.rglob(RECORD)]
    folders.sort(key=lambda path: (len(str(path)), path))
    return [JobFolder(path) for path in folders]


def choose_folder(
    root: Path, wanted: Path, options: Mapping[str, Any], is_search: bool
) -> JobFolder:
    """Choose the folder of a job: the one in which it ran before, or else the wanted one.

    Args:
        root: the multirun's folder.
        wanted: folder by the job's number.
        options: the job's identity.
        is_search: a search that continues has other jobs of the same numbers: they get the next free ones.

    Raises:
        UserError: the wanted folder holds another job.
    """
    jobs = job_folders(root)
    for job in jobs:
        if job.options == options:
            return job
    paths = [job.path.resolve() for job in jobs]
    number = 0
    while wanted.resolve() in paths:
        if not is_search:
            another = "holds a job with other options: choose another hydra.sweep.dir, or delete it"
            raise UserError(f"{wanted} {another}")
        wanted = root / str(number)
        number += 1
    return JobFolder(wanted)


# Identity


def checksum(record: Mapping[str, Any]) -> str:
    """Return an identity's SHA-256, computed from JSON."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def identity(options: dict[str, Any]) -> dict[str, Any]:
    """Return the nested options of a job as JSON values by dotted name, without `WITHOUT_INFLUENCE`."""
    values: dict[str, Any] = json.loads(json.dumps(flat(options)))
    for name in list(values):
        if f"{name}.".startswith(WITHOUT_INFLUENCE):
            del values[name]
    return values


def text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an identity that decide a job's tokens."""
    chosen = {}
    for name, value in options.items():
        if name.startswith("data.") and name not in NOT_OF_THE_TEXT:
            chosen[name] = value
    return chosen


def shared_precision(root: Path, config: DictConfig) -> str:
    """Return the precision of a job; for `trainer.precision=auto` one choice for all jobs.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        root: folder of the multirun.
        config: of a job.
    """
    if config.trainer.precision != "auto":
        return str(config.trainer.precision)
    file = root / PRECISION_FILE
    if not read_json(file):
        from txl_lightning.evaluation.hardware import (  # imports torch
            resolve_accelerator,
            resolve_precision,
        )

        resolved = resolve_precision(resolve_accelerator(typed(config)))
        root.mkdir(parents=True, exist_ok=True)
        write_json(file, {"trainer.precision": resolved.trainer.precision})
    return str(read_json(file)["trainer.precision"])


def refuse_another_text(root: Path, config: DictConfig, options: dict[str, Any]) -> None:
    """Refuse a job whose text has changed since jobs ended in the folder of its multirun.

    Args:
        root: folder of the multirun.
        config: config of the job.
        options: its identity.

    Raises:
        UserError: a table would have losses of two texts, or the text cannot be read.
    """
    for job in job_folders(root):
        corpus = job.result.get("corpus")
        if corpus is None or text_options(job.options) != text_options(options):
            continue
        from txl_lightning.data.corpus import corpus_source  # imports numpy

        _, now = corpus_source(typed(config.data))
        if corpus["sha256"] != now:
            other = f"{job.path} used another text than data={config.data.name} has now"
            raise UserError(f"{other}: choose another hydra.sweep.dir, or delete the old jobs")
        return  # the other jobs were compared with this one


# Searches


def check_search(config: DictConfig) -> None:
    """Refuse a multirun whose jobs would all fail, before the first one.

    Raises:
        UserError: names the option.
    """
    sweeper = config.hydra.sweeper
    direction = sweeper.get("direction")
    one = "must be one direction, a job has one objective"
    require(not OmegaConf.is_list(direction), "hydra.sweeper.direction", direction, one)
    words = list(config.hydra.overrides.task)
    for name, value in (sweeper.get("params") or {}).items():
        words.append(f"{name}={value}")
    is_grid = "GridSampler" in str(sweeper.get("sampler"))
    for word in words:
        if is_grid and "interval(" in word:
            raise UserError(f"{word}: a grid needs values: choice(…) or range(…)")


def ordering(jobs: list[JobFolder]) -> str | None:
    """Return the loss that orders jobs of one text: bits per byte, or else the loss of equal tokens.

    Returns:
        None if the losses of the finished jobs cannot be compared.
    """
    texts = set()
    tokens = set()
    have_bytes = True
    for job in jobs:
        if job.result:
            options = job.options
            texts.add((job.result.get("corpus", {}).get("name"), str(options.get("data.path"))))
            tokens.add(checksum(text_options(options)))
            have_bytes = have_bytes and BITS_PER_BYTE in job.result
    if len(texts) > 1:
        return None
    if have_bytes:
        return BITS_PER_BYTE
    return "val/nll" if len(tokens) == 1 else None


def loss_of_job(root: Path, job: JobFolder, is_search: bool) -> float | None:
    """Return the loss that a search minimizes; None for a grid whose losses have no order.

    Raises:
        UserError: a search would minimize losses that cannot be compared.
    """
    name = ordering(job_folders(root))
    if name is not None:
        return float(job.result[name])
    if is_search:
        raise UserError(NO_ORDER)
    return None


# Table


def write_results(root: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from all job folders, the lowest loss first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        Path of the table; None if no folder holds a job.
    """
    jobs = job_folders(root)
    if not jobs:
        return None
    order = ordering(jobs)
    jobs.sort(key=lambda job: job.result.get(str(order), math.inf))
    rows = [row_of(job, root) for job in jobs]
    drop_equal_overrides(rows)
    text = markdown(rows)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    seeds = over_seeds(jobs, rows)
    if seeds:
        text += f"\n{markdown(seeds)}"
    write_json(root / JSON_FILE, {"objective": order, "jobs": rows, "seeds": seeds})
    table = root / TABLE_FILE
    write_text(table, text)
    return table


def row_of(job: JobFolder, root: Path) -> dict[str, Any]:
    """Return a job's row: its folder, overrides, losses, and its state.

    A job is finished, failed or stopped. For a finished one the state also names what ended its training early.
    """
    record = job.record
    result = job.result
    row: dict[str, Any] = {"job": job.path.relative_to(root).as_posix()}
    for word in record.get("overrides", []):
        name, _, value = word.partition("=")
        row[name] = str(job.options.get(name, value))  # the value that it has in the job
    for name, value in result.items():
        if is_loss(name) and isinstance(value, float):
            row[name] = value
    row["state"] = "stopped"
    if result:
        row["state"] = "finished"
        if "ended_by" in result:
            row["state"] += f" by {result['ended_by']} at step {result['steps']}"
    elif "error" in record:
        row["state"] = "failed"
        row["error"] = record["error"]
    return row


def is_loss(name: str) -> bool:
    """Return whether a column has losses of a split, such as `val/bpb`."""
    return name.startswith(("val/", "test/"))


def drop_equal_overrides(rows: list[dict[str, Any]]) -> None:
    """Drop the overrides that are equal in all jobs."""
    for name, value in list(rows[0].items()):
        is_override = not is_loss(name) and name not in ("job", "state", "error")
        if is_override and all(row.get(name) == value for row in rows):
            for row in rows:
                del row[name]


def over_seeds(jobs: list[JobFolder], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean ± standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups = defaultdict(list)
    for job, row in zip(jobs, rows, strict=True):
        if job.result:
            options = job.options
            for name in SEEDS:
                options.pop(name, None)
            groups[checksum(options)].append(row)
    lines = []
    for group in groups.values():
        if len(group) == 1:
            continue
        line = dict(group[0], seeds=len(group))
        for name in ("job", "state", *SEEDS):
            line.pop(name, None)
        for name in line:
            if is_loss(name):
                values = [row[name] for row in group]
                line[name] = f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
        lines.append(line)
    return lines


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table; losses in nats and errors are left out."""
    names: list[str] = []
    for row in rows:
        for name in row:
            if name not in names and name != "error" and not name.endswith("/nll"):
                names.append(name)
    cells = []
    for row in rows:
        shown = {}
        for name, value in row.items():
            shown[name] = f"{value:.4f}" if isinstance(value, float) else value
        cells.append([shown.get(name, "–") for name in names])
    return markdown_table([name.replace("/", " ") for name in names], cells)
