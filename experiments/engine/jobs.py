"""Jobs: calls of `txl`, each identified by a hash of everything that its numbers depend on."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import txl_lightning
from txl_lightning.command_line.hydra_app import quoted
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, Config, plain, typed
from txl_lightning.reporting.machine import gpus, processor
from txl_lightning.training.precision import resolve_precision

RUNS = "@runs"  # placeholder in overrides for the folder of all runs, which may be moved
PATH_IN_RUNS = re.compile(rf"{RUNS}(/\.\.)?([^,\]]*)")
WITHOUT_INFLUENCE = (
    "logger",
    "checkpoint.every_n_steps",
    "data.cache_dir",
    "data.path",
    "data.root",
    "trainer.num_threads",
    "trainer.progress_bar",
    "trainer.progress_file",
    "trainer.log_every_n_steps",
)


@dataclass(frozen=True)
class Job:
    """One call of `txl`.

    Args:
        name: unique name; also its folder in `runs/`.
        command: command of `txl`, such as train.
        overrides: arguments of the command; `@runs` stands for the folder of all runs.
        arm: the arm of the comparison, in words.
        seed: seed of a training; None for measurements.
        tags: tags of the W&B run.
        needs: names of the jobs whose files it reads.
        alone: measures time, so no other job may run meanwhile.
        sections: sections of the report that use it.
    """

    name: str
    command: str
    overrides: tuple[str, ...]
    arm: str
    seed: int | None = None
    tags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    alone: bool = False
    sections: tuple[str, ...] = field(default=(), compare=False)

    @property
    def checkpoint(self) -> str:
        """Path of a training's best weights, for the overrides of another job."""
        return f"{RUNS}/{self.name}/checkpoints/best.ckpt"

    def overrides_in(self, runs: Path) -> tuple[str, ...]:
        """Return the overrides with the folder of all runs in place of `@runs`."""

        def path(found: re.Match[str]) -> str:
            return path_value(f"{runs.parent if found[1] else runs}{found[2]}")

        return tuple(PATH_IN_RUNS.sub(path, word) for word in self.overrides)

    def words(self, runs: Path) -> list[str]:
        """Return the command line of `txl`, without the run directory."""
        return [self.command, *self.overrides_in(runs)]


def path_value(path: str) -> str:
    """Return a path as the value of an override, in quotes if it has signs of Hydra's grammar such as `(`."""
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
    if overrides and overrides[-1].startswith("seed="):  # composing takes most of the time of a plan
        return replace(composed(overrides[:-1]), seed=int(overrides[-1].removeprefix("seed=")))
    return resolve_precision(_composed(overrides))


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("config", overrides=list(overrides)))


@cache
def code_version() -> str:
    """Return the SHA-256 of the package's sources and configuration files without comments and docstrings."""
    package = Path(txl_lightning.__file__).parent
    sources = [(path.relative_to(package), statements(path.read_text())) for path in package.rglob("*.py")]
    choices = [(path.relative_to(CONF), values(path.read_text())) for path in CONF.rglob("*.yaml")]
    digest = hashlib.sha256()
    for path, content in sorted({*sources, *choices}):
        digest.update(f"{path} {len(content)} {content}\n".encode())
    return digest.hexdigest()


def statements(source: str) -> str:
    """Return the syntax tree of a source, without comments, layout and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def values(text: str) -> str:
    """Return what Hydra reads from a configuration file, its values and its package, as text."""
    packages = [line for line in text.splitlines() if line.startswith("# @package")]
    return json.dumps([packages, OmegaConf.to_container(OmegaConf.create(text))])


def keys(jobs: list[Job], corpora: dict[str, str]) -> dict[str, str]:
    """Return a hash of what each job depends on, by job name: code, configuration, corpus, the jobs that it needs.

    Args:
        jobs: each after the jobs it needs.
        corpora: checksum of the corpus of each training, by job name.
    """
    made: dict[str, str] = {}
    for job in jobs:
        depends: dict[str, Any] = {"code": code_version(), "command": job.command, "torch": torch.__version__}
        depends |= {"machine": ", ".join([processor(), *gpus()])} if job.alone else {}
        depends |= {"needs": [made[name] for name in job.needs]}
        if job.command == "train":
            depends |= {"config": with_influence(composed(job.overrides)), "corpus": corpora[job.name]}
        else:
            depends |= {"overrides": job.overrides}
        made[job.name] = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    return made


def with_influence(config: Config) -> dict[str, Any]:
    """Return a configuration as plain values, without the options that change no number."""
    values = plain(config)
    for option in WITHOUT_INFLUENCE:
        group, _, name = option.partition(".")
        if name:
            values[group].pop(name)
        else:
            values.pop(group)
    return values
