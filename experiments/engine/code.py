"""Code that a command runs, as a hash: a job whose code has changed runs again."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[2]
PRESENTATION = (
    "txl_lightning/reporting",
    "txl_lightning/errors.py",
    "txl_lightning/training/loggers.py",
    "txl_lightning/evaluation/attention_figures.py",
    "txl_lightning/recl/figures.py",
    "txl_lightning/recl/page.py",
    "txl_lightning/recl/report.py",
)
"""Folders and files that change no number: finished jobs stay finished when they change."""


class _ModulesOfPackage(ModuleFinder):
    """Find imported modules in one package: other folders there may be named like libraries."""

    def __init__(self, package: str) -> None:
        super().__init__([str(SOURCES)])
        self.package = package

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        if path is None and name != self.package:
            raise ImportError(name)
        return super().find_module(name, path, parent)


@cache
def code_of(module: str) -> str:
    """Return a SHA-256 over the code that a module runs, without comments, layout and docstrings.

    That is every module in the same top-level package that it imports, directly or not, also inside functions.
    Files in `PRESENTATION` are left out.

    Args:
        module: dotted name, such as `txl_lightning.training.run`.
    """
    finder = _ModulesOfPackage(module.partition(".")[0])
    finder.import_hook(module)
    digest = hashlib.sha256()
    for _, found in sorted(finder.modules.items()):
        path = Path(found.__file__ or "")  # type: ignore[attr-defined]
        name = path.relative_to(SOURCES).as_posix()
        if not name.startswith(PRESENTATION):
            digest.update(name.encode())
            digest.update(statements(path.read_text("utf-8")).encode())
    return digest.hexdigest()


def statements(source: str) -> str:
    """Return a source's syntax tree as text, without comments, layout and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)
