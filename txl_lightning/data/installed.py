"""Corpus from Python source files that are installed here: no network is needed."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.sources import SPLITS, Part, Parts, Source, open_vocabulary, register_corpus
from txl_lightning.data.vocabulary import LEVELS
from txl_lightning.errors import UserError, notice

PACKAGES = ("sympy", "networkx")  # torch needs both
PUBLISHED_NAME = "sympy 1.14.0 + networkx 3.6.1"  # as in `constraints.txt`
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "__pycache__"}


@register_corpus("python-packages", *LEVELS)
def python_packages(config: DataConfig) -> Source:
    """Source files from the installed SymPy and NetworkX, without their tests.

    Every file is a document. They are ordered by a hash of their names, so the splits are similar, and never cut. The
    splits have about 90 %, 5 % and 5 % of the bytes. `PUBLISHED_NAME` is the same text on every machine.
    """
    path_of: dict[str, Path] = {}
    packages = []
    for package in PACKAGES:
        try:
            installed = metadata.distribution(package)  # does not import it
        except metadata.PackageNotFoundError as error:
            reason = f"{package} is not installed; use data=file data.path=…"
            raise UserError(f"data={config.name}: {reason}") from error
        packages.append(f"{package} {installed.version}")
        root = Path(str(installed.locate_file(package)))
        for path in root.rglob("*.py"):
            place = path.relative_to(root.parent)
            if path.name != "conftest.py" and EXCLUDED_FOLDERS.isdisjoint(place.parts):
                path_of[place.as_posix()] = path
    in_order = sorted(path_of, key=lambda name: hashlib.sha256(name.encode()).digest())
    name = " + ".join(packages)
    parts = _divided([path_of[name] for name in in_order])
    checksum: str | None = PACKAGES_CHECKSUM
    if name != PUBLISHED_NAME:
        checksum = None
        notice(f"data={config.name}: this text is {name}; losses of others cannot be compared")
    return Source(name, parts, open_vocabulary(config), checksum=checksum)


def _divided(paths: list[Path]) -> Parts:
    """Divide files into splits by their bytes."""
    total = sum(path.stat().st_size for path in paths)
    parts: Parts = {split: [] for split in SPLITS}
    end = 0
    for path in paths:
        end += path.stat().st_size
        number = np.searchsorted([0.9 * total, 0.95 * total], end, side="right")
        parts[SPLITS[number]].append(Part(path))
    return parts
