"""Identity of a job: everything that its numbers depend on, and nothing else."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from txl_lightning.config.schemas import flat

# Options that say how and where a job runs and what it leaves, and change no number.
WITHOUT_INFLUENCE = (
    *("logger", "resume", "checkpoint.every_n_steps", "data.root", "data.cache_dir"),
    *("trainer.progress_bar", "trainer.progress_file", "trainer.log_every_n_steps"),
)
NOT_OF_THE_TEXT = ("data.batch_size", "data.segment_len", "data.seed", "data.random_start")  # among options of `data`
# Presentation only: a change here does not make finished jobs stale.
SHOWS_ONLY = ("txl_lightning.reporting", "txl_lightning.training.loggers")
SHOWS_ONLY_NAMES = ("report", "figures", "progress_file")


def has_influence(option: str) -> bool:
    """Return whether a dotted option is part of a job's identity."""
    return not _is_in(option, WITHOUT_INFLUENCE)


def identity(config: DictConfig) -> dict[str, Any]:
    """Return all resolved options of a job by dotted name, without those of `WITHOUT_INFLUENCE`."""
    nodes = {str(name): config[name] for name in config if name != "hydra"}
    options = {n: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for n, v in nodes.items()}
    return with_influence(options)


def with_influence(options: dict[str, Any]) -> dict[str, Any]:
    """Return nested options as JSON values by dotted name, without those of `WITHOUT_INFLUENCE`."""
    return {name: value for name, value in json.loads(json.dumps(flat(options))).items() if has_influence(name)}


def of_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an identity that name the text of a job."""
    return {k: v for k, v in options.items() if k.startswith("data.") and not _is_in(k, NOT_OF_THE_TEXT)}


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the first option that differs, such as `seed=1, not 2`; others may follow it, as `data.seed` does."""
    names = sorted((*now, *before), key=lambda name: name.count("."))
    name = next(name for name in names if now.get(name) != before.get(name))
    return f"{name}={before.get(name)}, not {now.get(name)}"


@cache
def code_of(*modules: str) -> str:
    """Return the SHA-256 of the code that modules run, without comments, layout and docstrings.

    Their code is theirs and that of every module of the same top-level packages that it imports, directly or not, also
    inside functions; of an imported package all modules. Presentation is left out (`SHOWS_ONLY`).

    Args:
        modules: dotted names, such as `txl_lightning.training.command`.
    """
    roots = {name.partition(".")[0] for name in (*modules, __name__)}
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] not in roots:
            continue
        if (path := _file(name)) is None:  # a class or function of a module
            path = _file(name := name.rpartition(".")[0])
        shows_only = name.rpartition(".")[2] in SHOWS_ONLY_NAMES or _is_in(name, SHOWS_ONLY)
        if path is None or name in found or shows_only:
            continue
        found[name], imported = _statements_and_imports(path)
        waiting += imported
        if path.name == "__init__.py" and "." in name:
            waiting += [f"{name}.{inner.stem}" for inner in path.parent.glob("*.py") if inner != path]
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()


@cache
def _statements_and_imports(path: Path) -> tuple[str, list[str]]:
    source = path.read_text("utf-8")
    imported = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
    return statements(source), imported


def statements(source: str) -> str:
    """Return the syntax tree of a source, without comments, layout and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _is_in(name: str, groups: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{group}.") for group in groups)


def _file(name: str) -> Path | None:
    top, *inner = name.split(".")
    path = Path(find_spec(top).submodule_search_locations[0], *inner)  # type: ignore[union-attr, index]
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
