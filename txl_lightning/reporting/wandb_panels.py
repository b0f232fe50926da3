"""Weights & Biases runs: how one begins, and what goes into it besides curves: line series, tables, images, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wandb

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError


def start_run(
    directory: Path,
    logger: LoggerConfig,
    job_type: str,
    config: Mapping[str, Any],
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    run_id: str | None = None,
) -> wandb.Run:
    """Begin a run whose files lie in `directory`.

    Args:
        directory: of the command that logs.
        logger: project, group, tags and mode; its `run_name` comes before `name`.
        job_type: the command.
        config: everything that the run is known by.
        name: what the run is called; null leaves it to W&B.
        tags: beside the logger's own.
        run_id: of a run to go on with.

    Raises:
        OptionError: W&B does not take the run (online without a key, no server, a wrong name).
    """
    try:
        return wandb.init(
            dir=directory,
            project=logger.project,
            group=logger.group,
            name=logger.run_name or name,
            tags=list(dict.fromkeys((*logger.tags, *tags))),
            job_type=job_type,
            mode=logger.mode,  # type: ignore[arg-type]
            id=run_id,
            resume=None if run_id is None else "allow",
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
    except wandb.errors.Error as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise OptionError("logger.mode", logger.mode, f"Weights & Biases says: {why}") from error


@contextmanager
def wandb_run(directory: Path, logger: LoggerConfig, job_type: str, config: dict[str, Any]) -> Iterator[wandb.Run]:
    """The run of a command that trains nothing, finished on the way out."""
    run = start_run(directory, logger, job_type, config, name=job_type)
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


def log_files(
    run: wandb.Run,
    name: str,
    type: str,
    paths: Sequence[Path],
    metadata: Mapping[str, Any] | None = None,
    in_place: bool = False,
) -> None:
    """One version of an artifact: files under their names, folders with what is in them.

    Args:
        run: that makes it.
        name: letters, digits, `-`, `_` and `.`; the same name again is the next version.
        type: `model`, `report` or what else it is.
        paths: files and folders; one that is not there is left to W&B, which raises ValueError.
        metadata: figures to find a version by.
        in_place: offline, do not copy the files into W&B's own folder: `wandb sync` reads them where they lie, so
            they must not change until then.
    """
    artifact = wandb.Artifact(name, type=type, metadata=dict(metadata or {}))
    policy: Any = "immutable" if in_place else "mutable"
    for path in paths:
        add = artifact.add_dir if path.is_dir() else artifact.add_file
        add(str(path), name=path.name, policy=policy)
    run.log_artifact(artifact)
