"""Jobs (`txl` commands, identified by everything that their numbers depend on) and their result files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from experiments.engine.code import code_of
from txl_lightning.application import composition, register
from txl_lightning.config.schemas import Config, plain, typed
from txl_lightning.evaluation.units import loss_unit
from txl_lightning.jobs import quoted
from txl_lightning.multirun import checksum, identity
from txl_lightning.registry import COMMANDS
from txl_lightning.reporting import gpus, processor

RUNS = "@runs"  # stands for the folder that holds all runs: it may be moved
PATH_IN_RUNS = re.compile(rf"{RUNS}([^,\]]*)")


@dataclass(frozen=True)
class Job:
    """One `txl` command.

    Args:
        name: unique name; also its folder in `runs/`.
        command: such as train.
        overrides: arguments of the command; `@runs` stands for the folder with all runs.
        arm: the arm, in words.
        seed: a training's seed; None for measurements.
        needs: names of jobs whose files it reads.
        alone: measures time, so no other job may run meanwhile.
    """

    name: str
    command: str
    overrides: tuple[str, ...]
    arm: str
    seed: int | None = None
    needs: tuple[str, ...] = ()
    alone: bool = False

    @property
    def checkpoint(self) -> str:
        """Path to a training's best weights, for another job's overrides."""
        return f"{RUNS}/{self.name}/checkpoints/best.ckpt"

    def overrides_in(self, runs: Path) -> tuple[str, ...]:
        """Return the overrides with `@runs` replaced by its folder."""

        def quoted_path(match: re.Match[str]) -> str:
            path = (runs / match[1].lstrip("/")).resolve()
            return quoted(str(path))

        return tuple(PATH_IN_RUNS.sub(quoted_path, word) for word in self.overrides)


def composed(overrides: tuple[str, ...]) -> Config:
    """Return a training's configuration; it is cached, so callers must not change it.

    Raises:
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    option, _, seed = overrides[-1].partition("=")
    if option != "seed":
        return _typed(overrides)
    return _typed(overrides[:-1], int(seed))


@cache
def _typed(overrides: tuple[str, ...], seed: int | None = None) -> Config:
    config = composed_options(overrides)
    if seed is not None:  # a plan spends most time on composing
        config = config.copy()
        config.seed = seed
    return typed(config)


@cache
def composed_options(overrides: tuple[str, ...]) -> DictConfig:
    """Return a training's options as Hydra composes them."""
    register()
    return composition("train", overrides)


def identities(jobs: Sequence[Job], corpora: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return for each job all that its numbers depend on: code, options, corpus, the jobs that it needs.

    Args:
        jobs: each after the jobs it needs.
        corpora: checksum of each training's corpus, by job name.

    Returns:
        by job name.
    """
    made: dict[str, dict[str, Any]] = {}
    for job in jobs:
        depends: dict[str, Any] = {
            "command": job.command,
            "code": code_of(COMMANDS[job.command].module),
            "torch": str(torch.__version__),
            "needs": [checksum(made[name]) for name in job.needs],
            "options": list(job.overrides),
        }
        if job.command == "train":
            options = identity(plain(composed(job.overrides)))
            options["data.path"] = corpora[job.name]  # the text counts, not its place
            depends["options"] = options
        if job.alone:
            depends["machine"] = [processor(), *gpus()]
        made[job.name] = depends
    return made


@dataclass(frozen=True)
class Outcomes:
    """Finished jobs' result files.

    Args:
        runs: folder with all runs.
        figures: folder with the report's figures.
        jobs: all jobs in the reproduction; the spread between seeds is pooled over them.
        finished: names of finished jobs.
    """

    runs: Path
    figures: Path
    jobs: tuple[Job, ...]
    finished: frozenset[str]

    @property
    def unit(self) -> str:
        """Unit in which losses are reported: ppl, bpc or bpb."""
        training = next(job for job in self.jobs if job.command == "train")
        return loss_unit(composed(training.overrides).data.level)

    def has(self, job: Job) -> bool:
        """Return whether a job is finished."""
        return job.name in self.finished

    def result(self, job: Job, file: str) -> dict[str, Any]:
        """Read a finished job's JSON file."""
        text = (self.runs / job.name / file).read_text()
        content: dict[str, Any] = json.loads(text)
        return content
