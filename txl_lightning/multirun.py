"""Results of a multirun: `multirun.json` and `multirun.md` from the folders of its jobs, and its objective."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.config.schemas import typed
from txl_lightning.errors import UserError
from txl_lightning.files import write_json, write_text
from txl_lightning.job_folder import NOT_OF_THE_TEXT, JobFolder, checksum, job_folders, options_of_text
from txl_lightning.reporting import markdown_table

JSON_FILE = "multirun.json"
TABLE_FILE = "multirun.md"
PRECISION_FILE = "precision.json"
BITS_PER_BYTE = "val/bpb"
UNITS = ("nll", "bpc", "ppl", "bpt", "bpb")
LOSSES = tuple(f"{split}/{unit}" for split in ("val", "test") for unit in UNITS)
OF_THE_SEED = ("seed", "data.seed")
MAX_NAME_LENGTH = 128  # of a W&B group
NO_ORDER = (
    "The jobs have different tokens, and not all of them have bits per byte: their losses cannot be compared, and the "
    "table has no order."
)


def search_words(config: DictConfig) -> list[Override]:
    """Return the overrides of a multirun, typed ones and those of `hydra.sweeper.params`."""
    words: list[Any] = list(OmegaConf.to_container(config.hydra.overrides.task, resolve=False))  # type: ignore[arg-type]
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
    for name, value in (sweeper.get("params") or {}).items():
        words.append(f"{name}={value}")
    return OverridesParser.create().parse_overrides(words)


def check_search(config: DictConfig) -> None:
    """Refuse a search whose jobs would all fail, before the first one.

    Raises:
        UserError: names the option.
    """
    direction = OmegaConf.select(config, "hydra.sweeper.direction")
    if OmegaConf.is_list(direction) and len(direction) != 1:
        raise UserError(f"hydra.sweeper.direction={direction}: must be one direction, a job has one objective")
    sampler = str(OmegaConf.select(config, "hydra.sweeper.sampler._target_", default=""))
    if sampler.endswith(".GridSampler"):
        for word in search_words(config):
            if isinstance(word.value(), IntervalSweep):
                raise UserError(f"{word.input_line}: a grid needs values: choice(…) or range(…)")
    devices = OmegaConf.select(config, "trainer.devices", default=1)
    launcher = str(config.hydra.launcher._target_)
    if launcher.endswith(".LocalLauncher") and devices != 1:
        raise UserError(f"trainer.devices={devices}: must be 1 with hydra/launcher=submitit_local")


def objective(config: DictConfig, name: str) -> str:
    """Return the key of `metrics.json` that a search minimizes: bits per byte if it changes the tokens.

    Args:
        config: of the multirun.
        name: objective of jobs with the same tokens.
    """
    for word in search_words(config):
        option = word.get_key_element()
        changes_tokens = option == "data" or (option.startswith("data.") and option not in NOT_OF_THE_TEXT)
        if word.is_sweep_override() and changes_tokens:
            return BITS_PER_BYTE
    return name


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a composed config without its node `hydra`."""
    own = config.copy()
    with open_dict(own):
        own.pop("hydra", None)
    return own


def shared_precision(root: Path, config: DictConfig) -> str | None:
    """Return the precision of all jobs with `trainer.precision=auto`; None if a config does not say auto.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        root: folder of the multirun.
        config: of a job or of the whole multirun.
    """
    if OmegaConf.select(config, "trainer.precision", default=None) != "auto":
        return None
    folder = JobFolder(root, PRECISION_FILE)
    known = folder.record.get("trainer.precision")
    if known is not None:
        return str(known)
    from txl_lightning.evaluation.hardware import resolve_accelerator, resolve_precision  # imports torch

    try:
        options = typed(without_hydra(config))
    except (OmegaConfBaseException, UserError):  # the job itself says which option is wrong
        return None
    precision: str = resolve_precision(resolve_accelerator(options)).trainer.precision
    root.mkdir(parents=True, exist_ok=True)
    folder.write({"trainer.precision": precision})
    return precision


def multirun_name(directory: str) -> str:
    """Return a multirun's folder as one word, equal in all of its jobs: `multirun-2026-11-20-12-30-00`."""
    path = Path(directory).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    parts = [part for part in path.parts if part != path.anchor]
    return "-".join(parts)[-MAX_NAME_LENGTH:]


@dataclass(frozen=True)
class Row:
    """One job in the table.

    Attributes:
        job: its folder, relative to that of the multirun.
        overrides: those that differ between the jobs, by name.
        metrics: steps and losses by name.
        state: finished, failed or stopped.
        ended_by: what ended the training early; empty if nothing did.
        error: of a failed job, in one line.
        tokens: checksum of the options that decide the tokens.
        without_seed: checksum of the identity without seeds.
    """

    job: str
    overrides: dict[str, str]
    metrics: dict[str, float]
    state: str
    ended_by: str
    error: str
    tokens: str
    without_seed: str

    @property
    def is_finished(self) -> bool:
        """Whether the job has its result."""
        return self.state == "finished"

    def as_json(self, order: str | None) -> dict[str, Any]:
        """Return the entry of `multirun.json`."""
        entry: dict[str, Any] = {"job": self.job, "overrides": self.overrides, "state": self.state}
        entry["objective"] = self.metrics.get(order or "")
        entry["metrics"] = self.metrics
        if self.ended_by:
            entry["ended_by"] = self.ended_by
        if self.error:
            entry["error"] = self.error
        return entry


def write_results(directory: Path) -> Path | None:
    """Write `multirun.json` and `multirun.md` from the folders of all jobs, the lowest loss first.

    Neither has times or dates, so that a multirun that was interrupted ends with the same files.

    Returns:
        Path of the table; None if no folder holds a job, or if the disk is full (reported on stderr).
    """
    rows = read_rows(directory)
    if not rows:
        return None
    order = ordering(rows)
    if order is not None:
        rows.sort(key=lambda row: row.metrics.get(order, float("inf")))
    seeds = over_seeds(rows)
    content = {"objective": order, "jobs": [row.as_json(order) for row in rows], "seeds": seeds}
    try:
        write_json(directory / JSON_FILE, content)
        write_text(directory / TABLE_FILE, table(rows, order, seeds))
    except OSError as error:  # a full disk must not end the other jobs
        print(f"could not write the results of the multirun: {error}", file=sys.stderr, flush=True)
        return None
    return directory / TABLE_FILE


def read_rows(directory: Path) -> list[Row]:
    """Return a row for every folder of a job, in the order of their numbers."""
    jobs = job_folders(directory)
    typed_words = [_words_by_name(job) for job in jobs]
    names = dict.fromkeys(name for words in typed_words for name in words)
    varying = [name for name in names if len({words.get(name) for words in typed_words}) > 1]
    rows = []
    for job, words in zip(jobs, typed_words, strict=True):
        overrides = {name: words[name] for name in varying if name in words}
        rows.append(_row(job, overrides, directory))
    return rows


def _row(job: JobFolder, overrides: dict[str, str], directory: Path) -> Row:
    result = job.result
    error = str(job.record.get("error", ""))
    state = "failed" if error else "stopped"
    if result is not None:
        state = "finished"
        error = ""
    result = result or {}
    metrics = {}
    for name in ("steps", *LOSSES):
        if isinstance(result.get(name), (int, float)):
            metrics[name] = result[name]
    options = {name: value for name, value in job.options.items() if name not in OF_THE_SEED}
    return Row(
        job=job.path.relative_to(directory).as_posix(),
        overrides=overrides,
        metrics=metrics,
        state=state,
        ended_by=str(result.get("ended_by", "")),
        error=error,
        tokens=checksum(options_of_text(options)),
        without_seed=checksum(options),
    )


def _words_by_name(job: JobFolder) -> dict[str, str]:
    """Return the overrides of a job by name, with the values that interpolations have in it."""
    words = {}
    for word in job.record.get("overrides", []):
        name, _, value = str(word).partition("=")
        name = name.lstrip("+~")
        if value.startswith("$"):
            value = str(job.options.get(name, value))
        words[name] = value
    return words


def ordering(rows: Sequence[Row]) -> str | None:
    """Return the loss that orders the table; None if the losses of the jobs cannot be compared."""
    finished = [row for row in rows if row.is_finished]
    tokens = {row.tokens for row in finished}
    if len(tokens) <= 1:
        return "val/nll"
    if all(BITS_PER_BYTE in row.metrics for row in finished):
        return BITS_PER_BYTE
    return None


def over_seeds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return mean and standard deviation of every loss over the jobs that differ in `seed` alone."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.is_finished:
            groups.setdefault(row.without_seed, []).append(row)
    summaries = []
    for group in groups.values():
        if len(group) > 1:
            overrides = {name: value for name, value in group[0].overrides.items() if name not in OF_THE_SEED}
            losses = {}
            for name in LOSSES:
                values = [row.metrics[name] for row in group if name in row.metrics]
                if len(values) == len(group):
                    losses[name] = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
            summaries.append({"overrides": overrides, "n": len(group), "metrics": losses})
    return summaries


def table(rows: Sequence[Row], order: str | None, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all jobs in Markdown, and a second one of means over seeds."""
    names = list(dict.fromkeys(name for row in rows for name in row.overrides))
    losses = [name for name in LOSSES if any(name in row.metrics for row in rows)]
    losses = [name for name in losses if not name.endswith("/nll")]
    shown_losses = [name.replace("/", " ") for name in losses]
    lines = []
    for row in rows:
        cells = [row.job]
        cells.extend(row.overrides.get(name, "–") for name in names)
        cells.extend(f"{row.metrics[name]:.4f}" if name in row.metrics else "–" for name in losses)
        ended = f" at step {row.metrics.get('steps')} by {row.ended_by}" if row.ended_by else ""
        cells.append(row.state + ended)
        lines.append(cells)
    text = markdown_table(["job", *names, *shown_losses, "state"], lines)
    if order is None:
        text += f"\n{NO_ORDER}\n"
    if seeds:
        names = [name for name in names if name not in OF_THE_SEED]
        text += "\n" + _table_of_seeds(names, losses, shown_losses, seeds)
    return text


def _table_of_seeds(
    names: list[str], losses: list[str], shown_losses: list[str], seeds: Sequence[Mapping[str, Any]]
) -> str:
    """Return the table of means ± standard deviations."""
    lines = []
    for summary in seeds:
        cells = [summary["overrides"].get(name, "–") for name in names]
        cells.append(str(summary["n"]))
        for name in losses:
            values = summary["metrics"].get(name)
            cells.append(f"{values['mean']:.4f} ± {values['std']:.4f}" if values else "–")
        lines.append(cells)
    return markdown_table([*names, "seeds", *shown_losses], lines)
