"""Results of a multirun in its folder: `multirun.json`, and the same as a table in `multirun.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from txl_lightning.files import write_json, write_text
from txl_lightning.jobs.folder import JobFolder, job_folders
from txl_lightning.reporting.tables import markdown_table

JSON_FILE, TABLE_FILE = "multirun.json", "multirun.md"
LOSSES = tuple(f"{split}/{unit}" for split in ("val", "test") for unit in ("nll", "bpc", "ppl", "bpb"))


class MultirunTable(Callback):
    """Hydra callback that remembers the folder of a multirun and writes its results at the end.

    Attributes:
        directory: folder of this process's last multirun; None if there was none.
    """

    directory: Path | None = None

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
    typed = [_typed(job) for job in jobs]
    names = [name for name in dict.fromkeys(n for words in typed for n in words) if _differs(name, typed)]
    entries = []
    for job, words in zip(jobs, typed, strict=True):
        metrics, record = job.result or {}, job.record
        entry = {
            "job": job.path.relative_to(directory).as_posix(),
            "overrides": {name: words[name] for name in names if name in words},
            "state": "finished" if job.value is not None else "failed" if "error" in record else "stopped",
            "objective": job.value,
            "metrics": {name: metrics[name] for name in ("steps", *LOSSES) if name in metrics},
        }
        entries.append({**entry, "error": record["error"]} if entry["state"] == "failed" else entry)
    entries.sort(key=lambda entry: (entry["objective"] is None, entry["objective"]))
    try:
        write_json(directory / JSON_FILE, {"objective": jobs[0].record.get("objective"), "jobs": entries})
        write_text(directory / TABLE_FILE, _table(entries, names))
    except OSError as error:  # a full disk must not end the other jobs
        print(f"could not write the results of the multirun: {error}", file=sys.stderr, flush=True)
        return None
    return directory / TABLE_FILE


def _typed(job: JobFolder) -> dict[str, str]:
    words = (override.partition("=") for override in job.record.get("overrides", ()))
    return {name.lstrip("+~"): value for name, _, value in words}


def _differs(name: str, typed: Sequence[Mapping[str, str]]) -> bool:
    return len({words.get(name) for words in typed}) > 1


def _is_shown(name: str, metrics: Mapping[str, float]) -> bool:
    """Return whether a loss is shown: in its unit, and in bits per byte unless these are bits per character."""
    bpc = name.replace("/bpb", "/bpc")
    return name in metrics and not name.endswith("/nll") and (bpc == name or metrics[name] != metrics.get(bpc))


def _table(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    losses = [name for name in LOSSES if any(_is_shown(name, entry["metrics"]) for entry in entries)]
    rows = [
        [
            entry["job"],
            *(entry["overrides"].get(name, "–") for name in names),
            *(f"{entry['metrics'][name]:.4f}" if name in entry["metrics"] else "–" for name in losses),
            entry["state"],
        ]
        for entry in entries
    ]
    return markdown_table(["job", *names, *(name.replace("/", " ") for name in losses), "state"], rows)
