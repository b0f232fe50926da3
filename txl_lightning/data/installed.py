"""Corpora of Python source files that are installed here: no network is needed."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.sources import SPLITS, Part, Source, open_vocabulary, register_corpus
from txl_lightning.data.vocabulary import LEVELS
from txl_lightning.errors import UserError, notice

PACKAGES = {"sympy": "1.14.0", "networkx": "3.6.1"}  # as in `constraints.txt`; torch needs both
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@register_corpus("python-stdlib", *LEVELS)
def python_stdlib(config: DataConfig) -> Source:
    """Source files of the running Python's standard library, without its tests (see `_python_files`)."""
    version = ".".join(map(str, sys.version_info[:3]))
    root = Path(sysconfig.get_paths()["stdlib"])
    return _python_files(f"python-stdlib {version}", {root: root}, config)


@register_corpus("python-packages", *LEVELS)
def python_packages(config: DataConfig) -> Source:
    """Source files of the installed SymPy and NetworkX, without their tests (see `_python_files`).

    The versions of `PACKAGES` are the same text on every machine.
    """
    roots: dict[Path, Path] = {}
    names = []
    for package in PACKAGES:
        try:
            installed = metadata.distribution(package)  # does not import it
        except metadata.PackageNotFoundError as error:
            raise UserError(
                f"data={config.name}: {package} is not installed; use data=file data.path=…"
            ) from error
        root = Path(str(installed.locate_file(package)))
        roots[root] = root.parent
        names.append(f"{package} {installed.version}")
    name = " + ".join(names)
    known = " + ".join(f"{package} {version}" for package, version in PACKAGES.items())
    source = replace(_python_files(name, roots, config), subwords=2048)
    if name == known:
        return replace(source, checksum=PACKAGES_CHECKSUM)
    notice(f"data={config.name}: this text is {name}; losses of {known} cannot be compared with it")
    return source


def _python_files(name: str, roots: Mapping[Path, Path], config: DataConfig) -> Source:
    """Source files in folders, without tests.

    Every file is a document. They are ordered by a hash of their names, so that the splits are similar, and never cut.
    The splits have about 90 %, 5 % and 5 % of the bytes.

    Args:
        name: name of the corpus.
        roots: for each folder the one that its files' names are relative to.
        config: group `data`.
    """
    path_of: dict[str, Path] = {}
    for root, base in roots.items():
        for folder, folders, files in os.walk(root):
            folders[:] = [
                name for name in folders if name not in EXCLUDED_FOLDERS
            ]  # not entered: they may be many
            for file in files:
                if file.endswith(".py") and file != "conftest.py":
                    path = Path(folder, file)
                    path_of[path.relative_to(base).as_posix()] = path
    if not path_of:
        raise UserError(
            f"data={config.name}: there are no source files under {root}; use data=file data.path=…"
        )
    in_order = sorted(path_of, key=lambda name: hashlib.sha256(name.encode()).digest())
    paths = [path_of[name] for name in in_order]
    ends = np.cumsum([path.stat().st_size for path in paths])
    inner = np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist()
    parts = {}
    for split, (start, stop) in zip(SPLITS, pairwise([0, *inner, len(paths)]), strict=True):
        parts[split] = [Part(path) for path in paths[start:stop]]
    return Source(name, parts, open_vocabulary(config))
