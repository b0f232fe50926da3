"""Weights & Biases runs of commands that train nothing: line series, tables and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wandb

from txl_lightning.config import LoggerConfig


@contextmanager
def wandb_run(directory: Path, logger: LoggerConfig, job_type: str, config: dict[str, Any]) -> Iterator[wandb.Run]:
    """A run whose files lie in `directory`, finished on the way out."""
    run = wandb.init(
        dir=directory,
        project=logger.project,
        group=logger.group,
        tags=logger.tags,
        job_type=job_type,
        mode=logger.mode,  # type: ignore[arg-type]
        config=config,
        settings=wandb.Settings(silent=True, console="off", disable_git=True),
    )
    try:
        yield run
    finally:
        run.finish()


def log_line_series(
    run: wandb.Run, panel: str, x: Sequence[float], curves: Mapping[str, Sequence[float]], x_name: str, title: str
) -> None:
    """A panel of curves over the same x, by name."""
    series = wandb.plot.line_series(
        xs=list(x), ys=[list(y) for y in curves.values()], keys=list(curves), title=title, xname=x_name
    )
    run.log({panel: series})


def log_table(run: wandb.Run, panel: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table, its cells as text."""
    run.log({panel: wandb.Table(columns=list(header), data=[[str(cell) for cell in row] for row in rows])})


def log_image(run: wandb.Run, panel: str, path: Path, caption: str) -> None:
    """A picture that is on disk."""
    run.log({panel: wandb.Image(str(path), caption=caption)})
