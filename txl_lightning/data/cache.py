"""Encoded tokens, prepared once and memory-mapped afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.errors import UserError

PREPARATION_VERSION = 1


def cache_key(*parts: object) -> str:
    """A name for a preparation: changes with its inputs and with `PREPARATION_VERSION`."""
    return hashlib.sha256(json.dumps([PREPARATION_VERSION, *map(str, parts)]).encode()).hexdigest()[:32]


def cached(
    directory: Path, key: str, prepare: Callable[[], tuple[Mapping[str, np.ndarray], dict[str, Any]]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Memory-mapped arrays and their description from `directory/key`, prepared if they are not there.

    The folder is written under another name, flushed and renamed, so that it is whole or absent. Of two
    processes that prepare at the same time the first to rename wins, the other uses its result.

    Raises:
        UserError: the folder cannot be written (permissions, full disk).
    """
    folder = directory / key
    if not folder.is_dir():
        arrays, description = prepare()
        try:
            _write(folder, arrays, description)
        except OSError as error:
            raise UserError(f"data.cache_dir={directory}: cannot store prepared tokens: {error}") from error
    description = json.loads((folder / "description.json").read_text())
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in description["arrays"]}, description


def _write(folder: Path, arrays: Mapping[str, np.ndarray], description: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            with open(unfinished / f"{name}.npy", "wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        (unfinished / "description.json").write_text(json.dumps({**description, "arrays": list(arrays)}))
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
