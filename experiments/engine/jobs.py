"""Jobs: calls of `txl`, known by what they depend on, so that a finished one is never run again."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import txl_lightning
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, Config, plain, typed
from txl_lightning.reporting.machine import processor

RUNS = "@runs"  # stands in overrides for the folder of all runs, which may move
WITHOUT_INFLUENCE = (
    "logger",
    "checkpoint.every_n_steps",
    "data.cache_dir",
    "data.path",
    "data.root",
    "trainer.num_threads",
    "trainer.progress_bar",
    "trainer.log_every_n_steps",
)


@dataclass(frozen=True)
class Job:
    """One call of `txl`.

    Args:
        name: unique; the folder in `runs/`.
        command: of `txl`.
        overrides: as they are typed behind the command; `@runs` is the folder of all runs.
        arm: what is compared, in words.
        seed: of initialisation and dropout, of trainings.
        tags: of the W&B run.
        needs: names of the jobs whose files it reads.
        alone: it measures time, so that nothing may run beside it.
        sections: of the report, that use it.
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
        """The best weights of a training, as another job's override names them."""
        return f"{RUNS}/{self.name}/checkpoints/best.ckpt"

    def words(self, runs: Path) -> list[str]:
        """What is typed behind `txl`, but for where it writes."""
        beside, inside = (f"{RUNS}/..", str(runs.parent)), (RUNS, str(runs))
        return [self.command, *(word.replace(*beside).replace(*inside) for word in self.overrides)]


def merge(jobs_by_section: dict[str, list[Job]]) -> list[Job]:
    """All jobs once, each knowing the sections that use it, what is needed before what needs it.

    Raises:
        ValueError: two jobs of one name differ, or a needed one is missing.
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


@cache
def composed(overrides: tuple[str, ...]) -> Config:
    """The whole configuration of a training, which nobody may change.

    Raises:
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("config", overrides=list(overrides)))


@cache
def code_version() -> str:
    """SHA-256 over what the package's sources and its configuration files say, comments and docstrings left out."""
    package = Path(txl_lightning.__file__).parent
    sources = [(path.relative_to(package), statements(path.read_text())) for path in package.rglob("*.py")]
    choices = [(path.relative_to(CONF), values(path.read_text())) for path in CONF.rglob("*.yaml")]
    digest = hashlib.sha256()
    for path, content in sorted({*sources, *choices}):
        digest.update(f"{path} {len(content)} {content}\n".encode())
    return digest.hexdigest()


def statements(source: str) -> str:
    """A syntax tree without comments, layout and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def values(text: str) -> str:
    """What Hydra reads of a configuration file: its values and its package."""
    packages = [line for line in text.splitlines() if line.startswith("# @package")]
    return json.dumps([packages, OmegaConf.to_container(OmegaConf.create(text))])


def keys(jobs: list[Job], corpora: dict[str, str]) -> dict[str, str]:
    """What each job depends on, hashed: code, configuration, corpus, and the jobs that it needs.

    Args:
        jobs: in an order in which what is needed comes first.
        corpora: checksum of the corpus of every training.
    """
    made: dict[str, str] = {}
    for job in jobs:
        depends: dict[str, Any] = {"code": code_version(), "command": job.command, "torch": torch.__version__}
        depends |= {"machine": processor()} if job.alone else {}
        depends |= {"needs": [made[name] for name in job.needs]}
        if job.command == "train":
            depends |= {"config": with_influence(composed(job.overrides)), "corpus": corpora[job.name]}
        else:
            depends |= {"overrides": job.overrides}
        made[job.name] = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    return made


def with_influence(config: Config) -> dict[str, Any]:
    """The configuration without what changes no number."""
    values = plain(config)
    for option in WITHOUT_INFLUENCE:
        group, _, name = option.partition(".")
        if name:
            values[group].pop(name)
        else:
            values.pop(group)
    return values
