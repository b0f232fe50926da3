"""Code that a command runs, as a hash: a job whose code has changed runs again."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[2]
PRESENTATION = ("txl_lightning/reporting", "txl_lightning/recl/page.py")
"""Folders and files that change no number: finished jobs stay finished when they change."""


class _ModulesOfSources(ModuleFinder):
    """Find imported modules of `SOURCES` below one package: a folder there may have the name of a library."""

    def __init__(self, package: str) -> None:
        super().__init__([str(SOURCES)])
        self.package = package

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        if path is None and name != self.package:
            raise ImportError(name)
        return super().find_module(name, path, parent)


@cache
def code_of(module: str) -> str:
    """Return the SHA-256 of the code that a module runs, without comments, layout and docstrings.

    It covers every module of the same top-level package that the module imports, directly or not, also inside
    functions. Files of `PRESENTATION` are left out.

    Args:
        module: dotted name, such as `txl_lightning.training.run`.
    """
    finder = _ModulesOfSources(module.partition(".")[0])
    finder.import_hook(module)
    paths = {Path(found.__file__) for found in finder.modules.values() if found.__file__}  # type: ignore[attr-defined]
    presentation = {SOURCES / name for name in PRESENTATION}
    code = {}
    for path in sorted(paths):
        is_presentation = path in presentation or path.parent in presentation
        if not is_presentation:
            code[path.relative_to(SOURCES).as_posix()] = statements(path.read_text("utf-8"))
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


@cache
def statements(source: str) -> str:
    """Return the syntax tree of a source, without comments, layout and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
