"""Panels that a command logs to Weights & Biases, kept in memory instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from txl_lightning.reporting import wandb_panels


@contextmanager
def logged_panels() -> Iterator[dict[str, Any]]:
    """Collect by panel the arguments of tables, line series and images, and `config` and `summary` of the run."""
    found: dict[str, Any] = {"summary": {}}

    @contextmanager
    def run(directory: Any, logger: Any, job_type: str, config: dict[str, Any]) -> Iterator[Any]:
        found["config"] = config
        yield SimpleNamespace(summary=found["summary"])

    def keep(_: Any, panel: str, *values: Any) -> None:
        found[panel] = values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wandb_panels, "wandb_run", run)
        for name in ("log_table", "log_line_series", "log_image"):
            patch.setattr(wandb_panels, name, keep)
        yield found
