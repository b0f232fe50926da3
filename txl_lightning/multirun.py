"""Multirun results: `multirun.json` and `multirun.md`, made from its job folders, and its objective."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from omegaconf import DictConfig, OmegaConf

from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json, write_text
from txl_lightning.job_folder import JobFolder, checksum, job_folders, options_of_text
from txl_lightning.reporting import markdown_table

JSON_FILE = "multirun.json"
TABLE_FILE = "multirun.md"
BITS_PER_BYTE = "val/bpb"
UNITS = ("nll", "bpc", "ppl", "bpt", "bpb")
LOSSES = [f"val/{unit}" for unit in UNITS] + [f"test/{unit}" for unit in UNITS]
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
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    sweeper = hydra["sweeper"]
    direction = sweeper.get("direction")
    one = "must be one direction, a job has one objective"
    require(not isinstance(direction, list), "hydra.sweeper.direction", direction, one)
    words = hydra["overrides"]["task"]
    for name, value in (sweeper.get("params") or {}).items():
        words.append(f"{name}={value}")
    is_grid = "GridSampler" in str(sweeper.get("sampler"))
    for word in OverridesParser.create().parse_overrides(words):
        if is_grid and isinstance(word.value(), IntervalSweep):
            raise UserError(f"{word.input_line}: a grid needs values: choice(…) or range(…)")
    devices = OmegaConf.select(config, "trainer.devices", default=1)
    launcher = str(hydra["launcher"]["_target_"])
    can_have_ranks = devices == 1 or launcher.endswith(WITH_SEVERAL_RANKS)
    only = f"must be 1 with {launcher.rpartition('.')[2]}"
    require(can_have_ranks, "trainer.devices", devices, only)


@dataclass
class Row:
    """One job in the table.

    Attributes:
        job: its folder.
        name: its folder, relative to the multirun's.
        overrides: by name; in the table those that differ between the jobs.
        state: finished, failed or stopped; for a finished job also what ended its training early.
        metrics: losses by name.
        text: name of the text of a finished job.
    """

    job: JobFolder
    name: str
    overrides: dict[str, str] = field(default_factory=dict)
    state: str = "stopped"
    metrics: dict[str, float] = field(default_factory=dict)
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
    lines = []
    for row in rows:
        job: dict[str, Any] = {
            "job": row.name,
            "overrides": row.overrides,
            "state": row.state,
            "metrics": row.metrics,
        }
        if row.state == "failed":
            job["error"] = row.job.record["error"]
        jobs.append(job)
        line = {"job": row.name, **row.overrides}
        for name, value in row.metrics.items():
            line[name] = f"{value:.4f}"
        line["state"] = row.state
        lines.append(line)
    text = markdown(lines)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    seeds = over_seeds(rows)
    if seeds:
        text += f"\n{markdown(seeds)}"
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
    row = Row(job, job.path.relative_to(root).as_posix())
    for word in record.get("overrides", []):
        name, _, value = str(word).lstrip("+~").partition("=")
        row.overrides[name] = str(job.options.get(name, value))  # the value that it has in the job
    row.metrics = {name: result[name] for name in LOSSES if name in result}
    if result:
        row.state = "finished"
        corpus = result.get("corpus", {})
        row.text = f"{corpus.get('name')} {job.options.get('data.path')}"
        if "ended_by" in result:
            row.state += f" by {result['ended_by']} at step {result['steps']}"
    elif "error" in record:
        row.state = "failed"
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
    finished = [row for row in rows if row.metrics]
    if len({row.text for row in finished}) > 1:
        return None
    if all(BITS_PER_BYTE in row.metrics for row in finished):
        return BITS_PER_BYTE
    if len({checksum(options_of_text(row.job.options)) for row in finished}) == 1:
        return "val/nll"
    return None


def comparable_loss(root: Path) -> str | None:
    """Return the loss that a search minimizes: the one that orders the jobs that have finished until now."""
    return ordering([read_row(job, root) for job in job_folders(root)])


def without_seed(options: dict[str, Any]) -> dict[str, Any]:
    """Return options, or overrides, without the seeds."""
    return {name: value for name, value in options.items() if name not in OF_THE_SEED}


def over_seeds(rows: list[Row]) -> list[dict[str, str]]:
    """Return mean ± standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.metrics:
            key = checksum(without_seed(row.job.options))
            groups.setdefault(key, []).append(row)
    lines = []
    for group in groups.values():
        if len(group) == 1:
            continue
        line = without_seed(group[0].overrides)
        line["seeds"] = str(len(group))
        for name in group[0].metrics:
            values = [row.metrics[name] for row in group]
            mean = statistics.mean(values)
            line[name] = f"{mean:.4f} ± {statistics.stdev(values):.4f}"
        lines.append(line)
    return lines


def markdown(lines: list[dict[str, str]]) -> str:
    """Return a table of lines, each of cells by column; losses in nats are left out."""
    names: list[str] = []
    for line in lines:
        names += [name for name in line if name not in names and not name.endswith("/nll")]
    rows = []
    for line in lines:
        rows.append([line.get(name, "–") for name in names])
    return markdown_table([name.replace("/", " ") for name in names], rows)
