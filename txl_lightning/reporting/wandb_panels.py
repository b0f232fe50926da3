"""Weights & Biases runs: start one, and log images and pages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.lib.runid import generate_id

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError, first_line, notice
from txl_lightning.reporting.code import code_version

DEFAULT_SETTINGS = {
    "silent": True,
    "console": "off",
    "save_code": True,
}  # where no W&B variable sets one


def start_run(
    directory: Path,
    logger: LoggerConfig,
    job_type: str,
    config: Mapping[str, Any],
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    run_id: str | None = None,
    takes_given_id: bool = False,
) -> wandb.Run:
    """Start a run whose files lie in `directory`.

    Args:
        directory: the command's run directory.
        logger: project, group, tags and mode.
        job_type: the command's name, unless WANDB_JOB_TYPE sets one.
        config: configuration to show beside the run.
        name: run name, unless WANDB_NAME sets one; None: the command's name.
        tags: tags beside the logger's.
        run_id: id of a run to resume; None starts a new one.
        takes_given_id: whether a new run takes its id from WANDB_RUN_ID. An online training always does. An upload
            would keep only the last one among offline runs with the same id.

    Raises:
        OptionError: W&B refuses the run (online without a key, no server, a wrong name).
    """
    given = os.environ.get("WANDB_RUN_ID")
    if given:
        run_id = given
        is_training_online = job_type == "train" and logger.mode == "online"
        if not takes_given_id and not is_training_online:
            notice(
                f"WANDB_RUN_ID={given} is of another run or session: this one gets an id of its own"
            )
            run_id = generate_id()
    settings: dict[str, Any] = {}
    for setting, value in DEFAULT_SETTINGS.items():
        if not os.environ.get(f"WANDB_{setting.upper()}"):
            settings[setting] = value
    resume: Any = None
    if run_id is not None:
        resume = os.environ.get("WANDB_RESUME") or "allow"
    mode: Any = logger.mode
    try:
        return wandb.init(
            dir=directory,
            project=logger.project,
            group=logger.group,
            name=os.environ.get("WANDB_NAME") or name or job_type,
            tags=list(dict.fromkeys((*logger.tags, *tags))),
            job_type=os.environ.get("WANDB_JOB_TYPE") or job_type,
            mode=mode,
            id=run_id,
            resume=resume,
            config={**config, **code_version()},
            settings=settings,
        )
    except wandb.errors.Error as error:
        option = "project" if "project name" in str(error) else "mode"
        allowed = f"Weights & Biases says: {first_line(error)}"
        raise OptionError(f"logger.{option}", getattr(logger, option), allowed) from error


def log_file(run: wandb.Run, panel: str, path: Path) -> None:
    """Log an image, or an HTML page unchanged: links stay on the page."""
    if path.suffix == ".html":
        run.log({panel: wandb.Html(str(path), inject=False)})
    else:
        run.log({panel: wandb.Image(str(path))})
