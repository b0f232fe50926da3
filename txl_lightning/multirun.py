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

    @property
    def overrides(self) -> list[str]:
        """Overrides in the record."""
        return self.record.get("overrides", [])

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
    """Return the dict in a JSON file; {} if there is none, or a full disk has cut it off."""
    content: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text())
    return content


def job_folders(root: Path) -> list[JobFolder]:
    """Return a multirun's job folders, ordered by number."""
    folders = [record.parent for record in root.rglob(RECORD)]
    folders.sort(key=lambda path: (len(str(path)), path))
    return [JobFolder(path) for path in folders]


def choose_folder(root: Path, wanted: Path, options: Mapping[str, Any], is_search: bool) -> Path:
    """Choose the folder of a job: the one in which it ran before, or the wanted one.

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
            return job.path
    paths = [job.path for job in jobs]
    number = 0
    while wanted in paths:
        if not is_search:
            another = "holds a job with other options or another text"
            raise UserError(f"{wanted} {another}: choose another hydra.sweep.dir, or delete it")
        wanted = root / str(number)
        number += 1
    return wanted


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


def identity_with_text(config: DictConfig) -> dict[str, Any]:
    """Return the identity of a training: its options, and the checksum of the text that it reads."""
    from txl_lightning.data.corpus import corpus_source  # imports numpy

    options = identity(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    with suppress(UserError):  # the job itself will say that its text cannot be read
        _, options["text"] = corpus_source(typed(config.data))
    return options


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
    chosen = read_json(file)
    if not chosen:
        from txl_lightning.evaluation.hardware import (  # imports torch
            resolve_accelerator,
            resolve_precision,
        )

        resolved = resolve_precision(resolve_accelerator(typed(config)))
        root.mkdir(parents=True, exist_ok=True)
        chosen = {"trainer.precision": resolved.trainer.precision}
        write_json(file, chosen)
    return str(chosen["trainer.precision"])


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
    words: Any = OmegaConf.to_container(config.hydra.overrides.task)  # interpolations stay
    for name, value in (sweeper.get("params") or {}).items():
        words.append(f"{name}={value}")
    if "GridSampler" in str(sweeper.get("sampler")):
        for word in words:
            if "interval(" in word:
                raise UserError(f"{word}: a grid needs values: choice(…) or range(…)")


def ordering(jobs: list[JobFolder]) -> str | None:
    """Return the loss that orders jobs of one text: bits per byte, or else the loss of equal tokens.

    Returns:
        None if the losses of the finished jobs cannot be compared.
    """
    names = set()
    texts: dict[str, Any] = {}  # by the options of their tokens
    have_bytes = True
    for job in jobs:
        result = job.result
        if result:
            have_bytes = have_bytes and BITS_PER_BYTE in result
            options = job.options
            names.add(str([options.get("data.name"), options.get("data.path")]))
            text = options.get("text")
            for name in list(options):
                if not name.startswith("data.") or name in NOT_OF_THE_TEXT:
                    del options[name]
            if texts.setdefault(str(options), text) != text:  # it has changed between two jobs
                return None
    if len(names) > 1:
        return None
    if have_bytes:
        return BITS_PER_BYTE
    return "val/nll" if len(texts) == 1 else None


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
    equal = set(jobs[0].overrides)
    for job in jobs:
        equal &= set(job.overrides)
    rows = [row_of(job, root, equal) for job in jobs]
    seeds = over_seeds(rows)
    text = markdown(rows)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    if seeds:
        text += f"\n{markdown(seeds)}"
    write_json(root / JSON_FILE, {"objective": order, "jobs": rows, "seeds": seeds})
    table = root / TABLE_FILE
    write_text(table, text)
    return table


def row_of(job: JobFolder, root: Path, equal: set[str]) -> dict[str, Any]:
    """Return a job's row: its folder, the overrides that are not equal in all jobs, losses, and its state.

    A finished job's state names what ended its training early, a failed one's the error.
    """
    row: dict[str, Any] = {"job": job.path.relative_to(root).as_posix()}
    for word in job.overrides:
        if word not in equal:
            name, _, value = word.partition("=")
            row[name] = value
    result = job.result
    for name, value in result.items():
        if is_loss(name) and isinstance(value, float):
            row[name] = value
    row["state"] = "stopped"
    if "error" in job.record:
        row["state"] = f"failed: {job.record['error']}"
    if result:
        row["state"] = "finished"
    if "ended_by" in result:
        row["state"] += f" by {result['ended_by']} at step {result['steps']}"
    return row


def is_loss(name: str) -> bool:
    """Return whether a column has losses of a split, such as `val/bpb`."""
    return name.startswith(("val/", "test/"))


def over_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean ± standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups = defaultdict(list)
    for row in rows:
        losses = {}
        overrides = {}
        for name, value in row.items():
            if is_loss(name):
                losses[name] = value
            elif name not in ("job", "state", *SEEDS):
                overrides[name] = value
        if losses:
            groups[tuple(overrides.items())].append(losses)
    lines = []
    for key, group in groups.items():
        if len(group) > 1:
            line = dict(key, seeds=len(group))
            for name in group[0]:
                values = [losses[name] for losses in group]
                line[name] = f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
            lines.append(line)
    return lines


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table; losses in nats are left out."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    names = [name for name in columns if not name.endswith("/nll")]
    cells = []
    for row in rows:
        values = [row.get(name, "–") for name in names]
        cells.append([f"{value:.4f}" if isinstance(value, float) else value for value in values])
    return markdown_table([name.replace("/", " ") for name in names], cells)
