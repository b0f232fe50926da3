"""W&B run of a training that was interrupted: one run with all curves, not one for each session.

Offline, W&B cannot resume a run: uploading a second folder with the same id replaces the first. Therefore every row is
also kept in `wandb_history.jsonl`. A resumed run starts a new W&B run with an id of its own, repeats the rows up to its
checkpoint, and renames the files of the earlier sessions, so that `wandb sync` does not find them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from txl_lightning.training.loggers.curve_file import CurveFile

HISTORY = "wandb_history.jsonl"
SUPERSEDED = ".superseded"  # suffix of the .wandb file of an earlier session
TEST = "test/"  # measured after the last step


class RepeatableWandbLogger(WandbLogger):
    """W&B logger that keeps its rows in a file, from which a resumed run repeats them.

    Args:
        run: the W&B run.
        file: `wandb_history.jsonl` of the run directory.
    """

    def __init__(self, run: Any, file: CurveFile) -> None:
        super().__init__(experiment=run)
        self.file = file

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.file.append({"steps": step, "metrics": dict(metrics)})

    def log_series(
        self, panel: str, x: Sequence[float], curves: Mapping[str, Sequence[float]], x_name: str, title: str, step: int
    ) -> None:
        """Log a panel of named curves over a common x, measured after `step` steps."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        log_line_series(self.experiment, panel, x, curves, x_name, title)
        self.file.append({"steps": step, "series": [panel, x, curves, x_name, title]})

    def repeat(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows of earlier sessions again, in their order."""
        from txl_lightning.reporting.wandb_panels import log_line_series

        for row in rows:
            if "metrics" in row:
                super().log_metrics(row["metrics"], row["steps"])
            elif "series" in row:
                log_line_series(self.experiment, *row["series"])


def earlier_rows(file: CurveFile, step: int, max_steps: int) -> list[dict[str, Any]]:
    """Return the rows up to `step` that earlier sessions logged, and drop the others, which will be measured again."""

    def is_kept(row: dict[str, Any]) -> bool:
        measured_again = step >= max_steps and any(name.startswith(TEST) for name in row.get("metrics", ()))
        return row["steps"] <= step and not measured_again

    return file.keep(is_kept)


def add_run(file: CurveFile, run_id: str) -> None:
    """Note the id of a session's W&B run; step 0, so that a resumed run keeps the line."""
    file.append({"steps": 0, "run": run_id})


def supersede(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rename the offline runs of earlier sessions, whose rows a new run has repeated."""
    for path in _offline_files(directory, rows):
        path.rename(path.with_name(path.name + SUPERSEDED))


def upload_command(directory: Path) -> str | None:
    """Return the command that uploads the offline run of a run directory; None if there is none."""
    files = _offline_files(directory, CurveFile(directory / HISTORY).keep(lambda row: True))
    return f"wandb sync {shlex.quote(str(files[-1].parent))}" if files else None


def _offline_files(directory: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    ids = [row["run"] for row in rows if "run" in row]
    return [path for run_id in ids for path in directory.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")]
