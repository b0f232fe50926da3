"""Settings of one reproduction, and how many jobs it runs at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.engine.profiles import Profile
from txl_lightning.errors import UserError
from txl_lightning.reporting.machine import cores

MAX_DEFAULT_PARALLEL = 8


@dataclass(frozen=True)
class Setup:
    """Settings of one reproduction.

    Args:
        profile: sizes, seeds and estimates.
        overrides: the user's, appended to every `txl train`.
        directory: folder of everything it writes.
        planning: only print a plan: nothing is written, and a corpus may be missing.
        sections: names of the chosen sections, in the report's order.
        parallel: jobs that run at once; None for `default_parallel`.
        logger: wandb, csv or none.
        prefix: words in front of every job's command, such as `srun --nodes 2`.
        command: command line that makes the same report.
    """

    profile: Profile
    overrides: tuple[str, ...]
    directory: Path
    planning: bool = False
    sections: tuple[str, ...] = ()
    parallel: int | None = None
    logger: str = "wandb"
    prefix: tuple[str, ...] = ()
    command: str = ""

    @property
    def runs(self) -> Path:
        """Folder of all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures."""
        return self.directory / "figures"


def default_parallel(profile: Profile) -> int:
    """Return how many jobs run at once: one for each core, or for each GPU that a job does not share."""
    if profile.accelerator == "gpu":
        return max(1, len(_visible_gpus()) // profile.devices)
    return min(MAX_DEFAULT_PARALLEL, cores())


def make_slots(profile: Profile, parallel: int) -> list[dict[str, str]]:
    """Return the environment variables of each job slot: on GPUs, each slot has GPUs of its own.

    Raises:
        UserError: there are too few GPUs.
    """
    if profile.accelerator != "gpu" or parallel == 1:
        return [{} for _ in range(parallel)]
    n, found = profile.devices, _visible_gpus()
    if parallel * n > len(found):
        raise UserError(f"--parallel {parallel}: needs {parallel * n} GPUs, {len(found)} are visible")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(found[i * n : (i + 1) * n])} for i in range(parallel)]


def _visible_gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for name in given.split(",") if name] if given else [str(i) for i in range(torch.cuda.device_count())]
