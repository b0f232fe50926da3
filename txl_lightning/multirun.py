"""Results of a multirun: `multirun.json` and `multirun.md` from the folders of its jobs, and its objective."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict

from txl_lightning.config.schemas import typed
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.job_folder import (
    NOT_OF_THE_TEXT,
    JobFolder,
    checksum,
    job_folders,
    options_of_text,
)
from txl_lightning.reporting import markdown_table

JSON_FILE = "multirun.json"
TABLE_FILE = "multirun.md"
PRECISION_FILE = "precision.json"
BITS_PER_BYTE = "val/bpb"
UNITS = ("nll", "bpc", "ppl", "bpt", "bpb")
OF_THE_SEED = ("seed", "data.seed")
MAX_NAME_LENGTH = 128  # of a W&B group
WITH_SEVERAL_RANKS = (".ProcessLauncher", ".SlurmLauncher")
NO_ORDER = (
    "The jobs have different tokens, and not all of them have bits per byte: their losses cannot be compared, and the "
    "table has no order."
)


def search_words(config: DictConfig) -> list[Override]:
    """Return the overrides of a multirun, typed ones and `hydra.sweeper.params`."""
    words: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
    for name, value in (sweeper.get("params") or {}).items():
        words.append(f"{name}={value}")
    return OverridesParser.create().parse_overrides(words)


def check_search(config: DictConfig) -> None:
    """Refuse a multirun whose jobs would all fail, before the first one.

    Raises:
        UserError: names the option.
    """
    direction = OmegaConf.select(config, "hydra.sweeper.direction")
    n_directions = len(direction) if OmegaConf.is_list(direction) else 1
    one = "must be one direction, a job has one objective"
    require(n_directions == 1, "hydra.sweeper.direction", direction, one)
    sampler = str(OmegaConf.select(config, "hydra.sweeper.sampler._target_", default=""))
    for word in search_words(config):
        if sampler.endswith(".GridSampler") and isinstance(word.value(), IntervalSweep):
            raise UserError(f"{word.input_line}: a grid needs values: choice(…) or range(…)")
    devices = OmegaConf.select(config, "trainer.devices", default=1)
    launcher = str(config.hydra.launcher._target_)
    can_have_ranks = devices == 1 or launcher.endswith(WITH_SEVERAL_RANKS)
    require(
        can_have_ranks, "trainer.devices", devices, f"must be 1 with {launcher.rpartition('.')[2]}"
    )


def objective(config: DictConfig, name: str) -> str:
    """Return the key of `metrics.json` that a search minimizes: bits per byte if it changes the tokens.

    Args:
        config: of the multirun.
        name: objective of jobs with the same tokens.
    """
    for word in search_words(config):
        option = word.get_key_element()
        of_data = option == "data" or option.startswith("data.")
        if word.is_sweep_override() and of_data and option not in NOT_OF_THE_TEXT:
            return BITS_PER_BYTE
    return name


def shared_precision(root: Path, config: DictConfig) -> str | None:
    """Return the precision of all jobs with `trainer.precision=auto`; None if a config does not say auto.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        root: folder of the multirun.
        config: of a job.
    """
    if OmegaConf.select(config, "trainer.precision", default=None) != "auto":
        return None
    folder = JobFolder(root, PRECISION_FILE)
    known = folder.record.get("trainer.precision")
    if known is not None:
        return str(known)
    from txl_lightning.evaluation.hardware import (  # imports torch
        resolve_accelerator,
        resolve_precision,
    )

    own = config.copy()
    with open_dict(own):
        own.pop("hydra", None)
    precision: str = resolve_precision(resolve_accelerator(typed(own))).trainer.precision
    root.mkdir(parents=True, exist_ok=True)
    folder.write({"trainer.precision": precision})
    return precision


def multirun_name(directory: str) -> str:
    """Return a multirun's folder as one word, equal in all of its jobs: `multirun-2026-11-20-12-30-00`."""
    return directory.strip("/").replace("/", "-")[-MAX_NAME_LENGTH:]


@dataclass
class Row:
    """One job in the table.

    Attributes:
        job: its folder, relative to the multirun's.
        overrides: by name; in the table those that differ between the jobs.
        options: identity of the job.
        state: finished, failed or stopped.
        metrics: losses by name.
        notes: error of a failed job, and what ended a training early.
    """

    job: str
    overrides: dict[str, str]
    options: dict[str, Any]
    state: str = "stopped"
    metrics: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def write_results(root: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from the folders of all jobs, the lowest loss first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        Path of the table; None if no folder holds a job, or if the disk is full (reported on stderr).
    """
    rows = read_rows(root)
    if not rows:
        return None
    order = ordering(rows)
    rows.sort(key=lambda row: row.metrics.get(order or "", math.inf))
    seeds = over_seeds(rows)
    entries = []
    for row in rows:
        entry = {"job": row.job, "overrides": row.overrides, "state": row.state}
        entries.append(
            {
                **entry,
                "objective": row.metrics.get(order or ""),
                "metrics": row.metrics,
                **row.notes,
            }
        )
    text = table(rows)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    if seeds:
        text += f"\n{table_of_seeds(seeds)}"
    try:
        write_json(root / JSON_FILE, {"objective": order, "jobs": entries, "seeds": seeds})
        write_text(root / TABLE_FILE, text)
    except OSError as error:  # a full disk must not end the other jobs
        print(f"could not write the results of the multirun: {error}", file=sys.stderr, flush=True)
        return None
    return root / TABLE_FILE


def read_rows(root: Path) -> list[Row]:
    """Return a row for every folder of a job, in the order of their numbers."""
    rows = [_row(job, root) for job in job_folders(root)]
    names = _names(row.overrides for row in rows)
    same = [name for name in names if len({row.overrides.get(name) for row in rows}) == 1]
    for row in rows:
        for name in same:
            row.overrides.pop(name, None)
    return rows


def _row(job: JobFolder, root: Path) -> Row:
    row = Row(job.path.relative_to(root).as_posix(), _overrides(job), job.options)
    result = job.result
    if result is not None:
        row.state = "finished"
        for split in ("val", "test"):
            for unit in UNITS:
                name = f"{split}/{unit}"
                if name in result:
                    row.metrics[name] = result[name]
        if "ended_by" in result:
            row.notes["ended_by"] = f"{result['ended_by']} at step {result['steps']}"
    elif "error" in job.record:
        row.state = "failed"
        row.notes["error"] = str(job.record["error"])
    return row


def _overrides(job: JobFolder) -> dict[str, str]:
    """Return the overrides of a job by name, with the values that they have in it."""
    overrides = {}
    for word in job.record.get("overrides", []):
        name, _, value = str(word).lstrip("+~").partition("=")
        overrides[name] = str(job.options.get(name, value))
    return overrides


def _names(mappings: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of all mappings, in the order of their first occurrence."""
    names: dict[str, None] = {}
    for mapping in mappings:
        names.update(dict.fromkeys(mapping))
    return list(names)


def ordering(rows: list[Row]) -> str | None:
    """Return the loss that orders the table; None if the losses of the jobs cannot be compared."""
    finished = [row for row in rows if row.state == "finished"]
    if len({checksum(options_of_text(row.options)) for row in finished}) <= 1:
        return "val/nll"
    if all(BITS_PER_BYTE in row.metrics for row in finished):
        return BITS_PER_BYTE
    return None


def over_seeds(rows: list[Row]) -> list[dict[str, Any]]:
    """Return mean and standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.state == "finished":
            without_seed = {
                name: value for name, value in row.options.items() if name not in OF_THE_SEED
            }
            groups.setdefault(checksum(without_seed), []).append(row)
    summaries = []
    for group in groups.values():
        if len(group) == 1:
            continue
        overrides = {
            name: value for name, value in group[0].overrides.items() if name not in OF_THE_SEED
        }
        losses = {}
        for name in group[0].metrics:
            values = [row.metrics[name] for row in group if name in row.metrics]
            losses[name] = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
        summaries.append({"overrides": overrides, "n": len(group), "metrics": losses})
    return summaries


def table(rows: list[Row]) -> str:
    """Return the table of all jobs in Markdown."""
    lines = []
    for row in rows:
        state = row.state
        if "ended_by" in row.notes:
            state += f" by {row.notes['ended_by']}"
        losses = {name: f"{value:.4f}" for name, value in row.metrics.items()}
        lines.append(({"job": row.job}, row.overrides, losses, {"state": state}))
    return _markdown(lines)


def table_of_seeds(summaries: list[dict[str, Any]]) -> str:
    """Return the table of means ± standard deviations over seeds in Markdown."""
    lines = []
    for summary in summaries:
        losses = {}
        for name, values in summary["metrics"].items():
            losses[name] = f"{values['mean']:.4f} ± {values['std']:.4f}"
        lines.append((summary["overrides"], {"seeds": str(summary["n"])}, losses))
    return _markdown(lines)


def _markdown(lines: list[Any]) -> str:
    """Return a table of lines, each of several groups of cells by their column."""
    columns: list[str] = []
    for groups in zip(*lines, strict=True):
        columns += [name for name in _names(groups) if not name.endswith("/nll")]
    cells = []
    for line in lines:
        by_column: dict[str, str] = {}
        for group in line:
            by_column.update(group)
        cells.append([by_column.get(column, "–") for column in columns])
    return markdown_table([column.replace("/", " ") for column in columns], cells)
