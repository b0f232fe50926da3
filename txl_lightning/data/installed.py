"""Corpus from Python source files that are installed here: no network is needed."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.sources import SPLITS, Part, Parts, Source, open_vocabulary, register_corpus
from txl_lightning.data.vocabulary import LEVELS
from txl_lightning.errors import UserError

PACKAGES = ("sympy", "networkx")  # torch needs both
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "__pycache__"}


@register_corpus("python-packages", *LEVELS)
def python_packages(config: DataConfig) -> Source:
    """Source files from the installed SymPy and NetworkX, without their tests.

    Every file is a document. They are ordered by a hash of their names, so the splits are similar, and never cut. The
    splits have about 90 %, 5 % and 5 % of the bytes. With the versions in `constraints.txt` the text is the same
    everywhere.
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
    parts = _divided([path_of[name] for name in in_order])
    make = open_vocabulary(config)
    return Source(" + ".join(packages), parts, make, checksum=PACKAGES_CHECKSUM)


def _divided(paths: list[Path]) -> Parts:
    """Divide files into splits by their bytes."""
    ends = np.cumsum([path.stat().st_size for path in paths])
    bounds = [0.9 * ends[-1], 0.95 * ends[-1]]
    parts: Parts = {split: [] for split in SPLITS}
    for path, number in zip(paths, np.searchsorted(bounds, ends, side="right"), strict=True):
        parts[SPLITS[number]].append(Part(path))
    return parts
