"""Multirun results: `multirun.json` and `multirun.md`, made from its job folders, and its objective."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from omegaconf import DictConfig, OmegaConf, open_dict

from txl_lightning.config.schemas import typed
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.job_folder import (
    JobFolder,
    checksum,
    job_folders,
    options_of_text,
    read_json,
)
from txl_lightning.reporting import markdown_table

JSON_FILE = "multirun.json"
TABLE_FILE = "multirun.md"
PRECISION_FILE = "precision.json"
BITS_PER_BYTE = "val/bpb"
LOSSES = tuple(
    f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", "bpc", "ppl", "bpt", "bpb")
)
OF_THE_SEED = ("seed", "data.seed")
WITH_SEVERAL_RANKS = (".ProcessLauncher", ".SlurmLauncher")
NO_ORDER = (
    "The jobs read different texts, or have different tokens and not all of them bits per byte: their losses cannot be "
    "compared, and the table has no order."
)


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
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    words = hydra["overrides"]["task"]
    for name, value in (hydra["sweeper"].get("params") or {}).items():
        words.append(f"{name}={value}")
    for word in OverridesParser.create().parse_overrides(words):
        if sampler.endswith(".GridSampler") and isinstance(word.value(), IntervalSweep):
            raise UserError(f"{word.input_line}: a grid needs values: choice(…) or range(…)")
    devices = OmegaConf.select(config, "trainer.devices", default=1)
    launcher = str(config.hydra.launcher._target_)
    can_have_ranks = devices == 1 or launcher.endswith(WITH_SEVERAL_RANKS)
    require(
        can_have_ranks, "trainer.devices", devices, f"must be 1 with {launcher.rpartition('.')[2]}"
    )


def shared_precision(root: Path, config: DictConfig) -> str | None:
    """Return the precision for all jobs with `trainer.precision=auto`; None if a config does not say auto.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        root: the multirun's folder.
        config: the job's config.
    """
    if OmegaConf.select(config, "trainer.precision", default=None) != "auto":
        return None
    known = read_json(root / PRECISION_FILE)
    if known:
        return str(known["trainer.precision"])
    from txl_lightning.evaluation.hardware import (  # imports torch
        resolve_accelerator,
        resolve_precision,
    )

    options = config.copy()
    with open_dict(options):
        options.pop("hydra", None)
    resolved = resolve_precision(resolve_accelerator(typed(options)))
    precision: str = resolved.trainer.precision
    root.mkdir(parents=True, exist_ok=True)
    write_json(root / PRECISION_FILE, {"trainer.precision": precision})
    return precision


@dataclass
class Row:
    """One job in the table.

    Attributes:
        job: its folder, relative to the multirun's.
        state: finished, failed or stopped.
        overrides: by name; the table shows those that differ between jobs.
        metrics: losses by name.
        notes: a failed job's error, and what ended a training early.
        options: the job's identity.
        text: name of the text that a finished job used.
    """

    job: str
    state: str
    overrides: dict[str, str]
    metrics: dict[str, float]
    notes: dict[str, str]
    options: dict[str, Any]
    text: str = ""


def write_results(root: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from all job folders, the lowest loss first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        Path of the table; None if no folder holds a job, or if the disk is full (reported on stderr).
    """
    rows = [read_row(job, root) for job in job_folders(root)]
    if not rows:
        return None
    drop_equal_overrides(rows)
    order = ordering(rows)
    if order is not None:
        rows.sort(key=lambda row: row.metrics.get(order, math.inf))
    jobs = []
    for row in rows:
        loss = row.metrics.get(order or "")
        job = {"job": row.job, "overrides": row.overrides, "state": row.state, "objective": loss}
        jobs.append({**job, "metrics": row.metrics, **row.notes})
    seeds = over_seeds(rows)
    text = table(rows)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    if seeds:
        text += f"\n{table_of_seeds(seeds)}"
    try:
        write_json(root / JSON_FILE, {"objective": order, "jobs": jobs, "seeds": seeds})
        write_text(root / TABLE_FILE, text)
    except OSError as error:  # a full disk must not end the other jobs
        print(f"could not write the results of the multirun: {error}", file=sys.stderr, flush=True)
        return None
    return root / TABLE_FILE


def read_row(job: JobFolder, root: Path) -> Row:
    """Return a job's row."""
    record = job.record
    result = job.result
    row = Row(job.path.relative_to(root).as_posix(), "stopped", {}, {}, {}, job.options)
    for word in record.get("overrides", []):
        name, _, value = str(word).lstrip("+~").partition("=")
        row.overrides[name] = str(row.options.get(name, value))  # the value that it has in the job
    for name in LOSSES:
        if name in result:
            row.metrics[name] = result[name]
    if result:
        row.state = "finished"
        corpus = result.get("corpus", {}).get("name")
        row.text = f"{corpus} {row.options.get('data.path')}"
        if "ended_by" in result:
            row.notes["ended_by"] = f"{result['ended_by']} at step {result['steps']}"
    elif "error" in record:
        row.state = "failed"
        row.notes["error"] = record["error"]
    return row


def drop_equal_overrides(rows: list[Row]) -> None:
    """Drop the overrides that are equal in all jobs."""
    for name, value in list(rows[0].overrides.items()):
        if all(row.overrides.get(name) == value for row in rows):
            for row in rows:
                del row.overrides[name]


def ordering(rows: list[Row]) -> str | None:
    """Return the loss that orders jobs of one text: bits per byte, or else the loss of equal tokens.

    Returns:
        None if the losses of the jobs cannot be compared.
    """
    finished = [row for row in rows if row.state == "finished"]
    if len({row.text for row in finished}) > 1:
        return None
    if all(BITS_PER_BYTE in row.metrics for row in finished):
        return BITS_PER_BYTE
    if len({checksum(options_of_text(row.options)) for row in finished}) == 1:
        return "val/nll"
    return None


def comparable_loss(root: Path) -> str | None:
    """Return the loss that a search minimizes: the one that orders the jobs that have finished until now."""
    return ordering([read_row(job, root) for job in job_folders(root)])


def without_seed(options: dict[str, Any]) -> dict[str, Any]:
    """Return options, or overrides, without the seeds."""
    return {name: value for name, value in options.items() if name not in OF_THE_SEED}


def over_seeds(rows: list[Row]) -> list[dict[str, Any]]:
    """Return every loss's mean and standard deviation over jobs that differ in `seed` alone."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.state == "finished":
            groups.setdefault(checksum(without_seed(row.options)), []).append(row)
    summaries = []
    for group in groups.values():
        if len(group) == 1:
            continue
        losses = {}
        for name in group[0].metrics:
            values = [row.metrics[name] for row in group]
            losses[name] = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
        overrides = without_seed(group[0].overrides)
        summaries.append({"overrides": overrides, "n": len(group), "metrics": losses})
    return summaries


def table(rows: list[Row]) -> str:
    """Return the Markdown table with all jobs."""
    lines = []
    for row in rows:
        state = row.state
        if "ended_by" in row.notes:
            state += f" by {row.notes['ended_by']}"
        losses = {name: f"{value:.4f}" for name, value in row.metrics.items()}
        lines.append(({"job": row.job}, row.overrides, losses, {"state": state}))
    return _markdown(lines)


def table_of_seeds(summaries: list[dict[str, Any]]) -> str:
    """Return the Markdown table with means ± standard deviations over seeds."""
    lines = []
    for summary in summaries:
        losses = {}
        for name, values in summary["metrics"].items():
            losses[name] = f"{values['mean']:.4f} ± {values['std']:.4f}"
        lines.append((summary["overrides"], {"seeds": str(summary["n"])}, losses))
    return _markdown(lines)


def _markdown(lines: Sequence[tuple[dict[str, str], ...]]) -> str:
    """Return a table; each line has several groups of cells by column, and a group's columns stand together."""
    columns: dict[str, str] = {}
    for group in zip(*lines, strict=True):
        for cells in group:
            columns.update({name: "–" for name in cells if not name.endswith("/nll")})
    rows = []
    for line in lines:
        row = dict(columns)
        for cells in line:
            row.update(cells)
        rows.append([row[name] for name in columns])
    return markdown_table([name.replace("/", " ") for name in columns], rows)
