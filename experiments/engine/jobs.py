"""Jobs: calls of `txl`, each identified by everything that its numbers depend on; their result files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.engine.code import code_of
from txl_lightning.application import composition, register
from txl_lightning.commands import COMMANDS
from txl_lightning.config.schemas import Config, DataConfig, data_class, plain, typed
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import UserError
from txl_lightning.evaluation.hardware import resolve_accelerator, resolve_precision
from txl_lightning.evaluation.units import loss_unit
from txl_lightning.files import expand
from txl_lightning.job_folder import JobFolder, checksum, identity
from txl_lightning.launcher import quoted
from txl_lightning.reporting import gpus, processor

Unit = Literal["bpc", "bpb", "ppl"]
RUNS = "@runs"  # placeholder in overrides for the folder of all runs, which may be moved
PATH_IN_RUNS = re.compile(rf"{RUNS}([^,\]]*)")


@dataclass(frozen=True)
class Job:
    """One call of `txl`.

    Args:
        name: unique name; also its folder in `runs/`.
        command: command of `txl`, such as train.
        overrides: arguments of the command; `@runs` stands for the folder of all runs.
        arm: the arm of the comparison, in words.
        seed: seed of a training; None for measurements.
        needs: names of the jobs whose files it reads.
        alone: measures time, so no other job may run meanwhile.
        sections: sections of the report that use it.
    """

    name: str
    command: str
    overrides: tuple[str, ...]
    arm: str
    seed: int | None = None
    needs: tuple[str, ...] = ()
    alone: bool = False
    sections: tuple[str, ...] = field(default=(), compare=False)

    @property
    def checkpoint(self) -> str:
        """Path of a training's best weights, for the overrides of another job."""
        return f"{RUNS}/{self.name}/checkpoints/best.ckpt"

    def overrides_in(self, runs: Path) -> tuple[str, ...]:
        """Return the overrides with the folder of all runs in place of `@runs`."""
        return tuple(PATH_IN_RUNS.sub(lambda found: path_value(f"{runs}{found[1]}"), word) for word in self.overrides)


def path_value(path: str) -> str:
    """Return a path without `..` as the value of an override, in quotes if it has signs of Hydra's grammar."""
    path = os.path.normpath(path)
    return path if re.fullmatch(r"[\w/.-]+", path, re.ASCII) else quoted(path)


def merge(jobs_by_section: dict[str, list[Job]]) -> list[Job]:
    """Return every job once, with all sections that use it, each after the jobs it needs.

    Raises:
        ValueError: two jobs with one name differ, or a needed job is missing.
    """
    merged: dict[str, Job] = {}
    for section, jobs in jobs_by_section.items():
        for job in jobs:
            known = merged.get(job.name, job)
            if known != job:
                raise ValueError(f"two jobs are called {job.name}")
            merged[job.name] = replace(job, sections=tuple(dict.fromkeys((*known.sections, section))))
    ordered: dict[str, Job] = {}
    while len(ordered) < len(merged):
        ready = {n: j for n, j in merged.items() if n not in ordered and all(need in ordered for need in j.needs)}
        if not ready:
            raise ValueError("a job needs one that is not planned")
        ordered |= ready
    return list(ordered.values())


def composed(overrides: tuple[str, ...]) -> Config:
    """Return the configuration of a training; it is cached, so callers must not change it.

    Raises:
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    return resolve_precision(resolve_accelerator(_typed(overrides)))


@cache
def _typed(overrides: tuple[str, ...]) -> Config:
    if not overrides or not overrides[-1].startswith("seed="):
        return typed(_composed("train", overrides))
    config = _composed("train", overrides[:-1]).copy()  # composing takes most of the time of a plan
    config.seed = int(overrides[-1].removeprefix("seed="))
    return typed(config)


def chosen_precision(overrides: tuple[str, ...], directory: Path, planning: bool) -> tuple[str, ...]:
    """Return the override that replaces `trainer.precision=auto` for all jobs of a directory; none without `auto`.

    The choice is measured and might change, so the first one is kept in `precision.json`.

    Args:
        overrides: those of profile and user.
        directory: folder of the reproduction.
        planning: write nothing.
    """
    if _typed(overrides).trainer.precision != "auto":
        return ()
    folder = JobFolder(directory, "precision.json")
    kept = folder.record.get("trainer.precision")
    if kept is None:
        kept = composed(overrides).trainer.precision
        if not planning:
            folder.write({"trainer.precision": kept})
    return (f"trainer.precision={kept}",)


@cache
def _composed(command: str, overrides: tuple[str, ...] = ()) -> DictConfig:
    register()
    return composition(COMMANDS[command].config_name, overrides)


@cache
def defaults(command: str) -> Any:
    """Return the options of a command with their defaults, as plain dicts."""
    return OmegaConf.to_container(_composed(command), resolve=True)


def identities(jobs: list[Job], corpora: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the numbers of each job depend on, by job name: code, options, corpus, the jobs that it needs.

    Args:
        jobs: each after the jobs it needs.
        corpora: checksum of the corpus of each training, by job name.
    """
    made: dict[str, dict[str, Any]] = {}
    for job in jobs:
        code = code_of(COMMANDS[job.command].module)
        depends: dict[str, Any] = {"code": code, "command": job.command, "torch": str(torch.__version__)}
        depends |= {"machine": ", ".join([processor(), *gpus()])} if job.alone else {}
        depends |= {"needs": [checksum(made[name]) for name in job.needs]}
        if job.command == "train":
            options = identity(plain(composed(job.overrides)))
            depends |= {"options": options | {"data.path": corpora[job.name]}}  # the text counts, not its place
        else:
            depends |= {"defaults": defaults(job.command), "overrides": list(job.overrides)}
        made[job.name] = depends
    return made


def corpus_checksum(config: DataConfig, planning: bool) -> str:
    """Return the SHA-256 of a corpus; a plan downloads nothing and takes "" for a corpus that is missing.

    Raises:
        UserError: the corpus is missing or damaged.
    """
    return "" if planning and not at_hand(config) else load_corpus(config).checksum


def at_hand(config: DataConfig) -> bool:
    """Return whether a corpus can be loaded without a download, the same in all of a call."""
    return _at_hand(json.dumps(plain(config)), os.environ.get("TXL_DATA"))


@cache
def _at_hand(config: str, downloads: str | None) -> bool:
    options = json.loads(config)
    data = data_class(options["name"])(**options)
    folder = expand(data.root or downloads or f"{data.cache_dir}/downloads") / data.name
    if data.name not in ("python-packages", "file") and not folder.is_dir():
        return False
    try:
        load_corpus(data)
    except UserError:  # incomplete or damaged
        return False
    return True


class Pending(Exception):  # noqa: N818 - not an error: the result comes later
    """A result is needed of a job that is not finished; the message is the name of the job."""


@dataclass(frozen=True)
class Outcomes:
    """Result files of finished jobs.

    Args:
        runs: folder of all runs.
        figures: folder of the report's figures.
        jobs: all jobs of the reproduction; the spread between seeds is pooled over them.
        finished: names of the jobs that are finished; None for all.
    """

    runs: Path
    figures: Path
    jobs: tuple[Job, ...] = ()
    finished: frozenset[str] | None = None

    @property
    def unit(self) -> Unit:
        """Unit of the trainings' losses (`loss_unit`)."""
        training = next(job for job in self.jobs if job.command == "train")
        return cast("Unit", loss_unit(composed(training.overrides).data.level))

    def has(self, job: Job) -> bool:
        """Return whether a job is finished."""
        return self.finished is None or job.name in self.finished

    def result(self, job: Job, file: str) -> dict[str, Any]:
        """Read a JSON file of a job.

        Raises:
            Pending: the job is not finished.
            UserError: the file is missing or damaged.
        """
        if not self.has(job):
            raise Pending(job.name)
        path = self.runs / job.name / file
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        return found

    def metrics(self, job: Job) -> dict[str, Any]:
        """Read `metrics.json` of a training."""
        return self.result(job, "metrics.json")

    def first(self, trainings: Iterable[Job]) -> dict[str, Any]:
        """Read `metrics.json` of the first of some trainings that is finished.

        Raises:
            Pending: none is.
        """
        for job in filter(self.has, trainings):
            return self.metrics(job)
        raise Pending("no training is finished yet")

    def figure(self, name: str) -> tuple[Path, str]:
        """Return the path of a figure, and the same relative to the report's folder; make its folder."""
        self.figures.mkdir(parents=True, exist_ok=True)
        return self.figures / name, f"{self.figures.name}/{name}"
