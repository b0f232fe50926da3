"""Results of a multirun: `multirun.json` and `multirun.md` from the folders of its jobs, and its objective."""

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
LOSSES = tuple(f"{split}/{unit}" for split in ("val", "test") for unit in UNITS)
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
    """One job in the table, or the jobs that differ in the seed alone.

    Attributes:
        job: folder of the job, relative to the multirun's.
        overrides: by name; in the table those that differ between the jobs.
        state: finished, failed or stopped; for a finished job also what ended its training early.
        metrics: losses by name.
        error: error of a failed job.
        options: identity of the job.
        text: name of the text of a finished job.
    """

    job: str
    overrides: dict[str, str] = field(default_factory=dict)
    state: str = "stopped"
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    text: str = ""


def write_results(root: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from the folders of all jobs, the lowest loss first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        Path of the table; None if no folder holds a job, or if the disk is full (reported on stderr).
    """
    rows = [read_row(job, root) for job in job_folders(root)]
    if not rows:
        return None
    drop_equal_overrides(rows)
    order = ordering(rows)
    text = f"\n{NO_ORDER}\n"
    if order is not None:
        rows.sort(key=lambda row: row.metrics.get(order, math.inf))
        text = ""
    jobs = []
    lines = []
    for row in rows:
        job: dict[str, Any] = {"job": row.job, "overrides": row.overrides, "state": row.state}
        job["metrics"] = row.metrics
        if row.error is not None:
            job["error"] = row.error
        jobs.append(job)
        losses = {name: f"{value:.4f}" for name, value in row.metrics.items()}
        lines.append([{"job": row.job}, row.overrides, losses, {"state": row.state}])
    text = markdown(lines) + text
    seeds = over_seeds(rows)
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
    """Return the row of a job."""
    record = job.record
    result = job.result
    row = Row(job.path.relative_to(root).as_posix(), options=job.options)
    for word in record.get("overrides", []):
        name, _, value = str(word).lstrip("+~").partition("=")
        row.overrides[name] = str(row.options.get(name, value))  # the value that it has in the job
    row.metrics = {name: result[name] for name in LOSSES if name in result}
    if result:
        row.state = "finished"
        row.text = f"{result.get('corpus', {}).get('name')} {row.options.get('data.path')}"
        if "ended_by" in result:
            row.state += f" by {result['ended_by']} at step {result['steps']}"
    elif "error" in record:
        row.state = "failed"
        row.error = record["error"]
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
    """Return mean and standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.metrics:
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


def table_of_seeds(summaries: list[dict[str, Any]]) -> str:
    """Return the table of means ± standard deviations over seeds in Markdown."""
    lines = []
    for summary in summaries:
        losses = {}
        for name, values in summary["metrics"].items():
            losses[name] = f"{values['mean']:.4f} ± {values['std']:.4f}"
        lines.append([summary["overrides"], {"seeds": str(summary["n"])}, losses])
    return markdown(lines)


def markdown(lines: list[list[dict[str, str]]]) -> str:
    """Return a table of lines, each of several groups of cells by column; a group's columns stand together."""
    names: list[str] = []
    for group in zip(*lines, strict=True):
        for cells in group:
            names += [name for name in cells if name not in names and not name.endswith("/nll")]
    rows = []
    for line in lines:
        row: dict[str, str] = {}
        for cells in line:
            row.update(cells)
        rows.append([row.get(name, "–") for name in names])
    return markdown_table([name.replace("/", " ") for name in names], rows)
