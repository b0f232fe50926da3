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

    It is the code of all modules of its top-level package that it imports, directly or not, also inside functions; of a
    package that imports what `iter_modules` finds, all modules. Files of `PRESENTATION` are left out.

    Args:
        module: dotted name, such as `txl_lightning.training.run`.

    Raises:
        FileNotFoundError: a path of `PRESENTATION` does not exist, so its changes would count again.
    """
    finder = _ModulesOfSources(module.partition(".")[0])
    finder.import_hook(module)
    paths = {Path(found.__file__) for found in finder.modules.values() if found.__file__}  # type: ignore[attr-defined]
    packages = (path for path in paths if path.name == "__init__.py" and "iter_modules" in path.read_text("utf-8"))
    paths |= {path for package in packages for path in package.parent.glob("*.py")}
    presentation = _presentation_paths()
    code = {}
    for path in sorted(paths):
        is_presentation = path in presentation or path.parent in presentation
        if not is_presentation:
            code[path.relative_to(SOURCES).as_posix()] = statements(path.read_text("utf-8"))
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def _presentation_paths() -> set[Path]:
    paths = set()
    for name in PRESENTATION:
        path = SOURCES / name
        if not path.exists():
            raise FileNotFoundError(f"{name} is listed in PRESENTATION of {__name__} but does not exist")
        paths.add(path)
    return paths


@cache
def statements(source: str) -> str:
    """Return the syntax tree of a source, without comments, layout and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
