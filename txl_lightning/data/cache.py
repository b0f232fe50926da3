"""Folders that are prepared once: whole or absent, and made again if they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.errors import UserError, notice
from txl_lightning.files import file_checksum, new_folder, sync_folder, write_json

PREPARATION_VERSION = 12
DESCRIPTION = "description.json"
LARGE_FILE_BYTES = 1 << 24  # from this size on the checksum of a file is kept

Description = dict[str, Any]
Prepared = tuple[dict[str, np.ndarray], Description]


def cache_key(*parts: object) -> str:
    """Return a folder name that changes with the inputs of a preparation and with `PREPARATION_VERSION`."""
    inputs = json.dumps([PREPARATION_VERSION, *map(str, parts)])
    return hashlib.sha256(inputs.encode()).hexdigest()[:32]


def cached(directory: Path, key: str, prepare: Callable[[Path], Description]) -> Prepared:
    """Return the memory-mapped arrays and the description in `directory/key`; prepare them first if missing.

    The folder gets its name only when it is complete and on disk. If two processes prepare it at the same time, the
    first to finish wins and the other one uses its result. A damaged folder is prepared again, which is said.

    Args:
        directory: folder of all preparations.
        key: see `cache_key`.
        prepare: writes arrays into the folder that it is given, as files NAME.DTYPE, and returns the description.

    Raises:
        UserError: the folder cannot be written (permissions, full disk), or `prepare` raised it.
    """
    folder = directory / key
    prepared = _opened(folder)
    if prepared is not None:
        return prepared
    failure = f"{folder} is damaged as soon as it is written"
    try:
        if os.path.lexists(folder):
            notice(f"data.cache_dir={directory}: {folder} is damaged; it is prepared again")
            shutil.rmtree(folder)
        directory.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as unfinished:
            description = prepare(unfinished)
            for path in unfinished.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            state = {"description": description, "sizes": _sizes(unfinished)}
            write_json(unfinished / DESCRIPTION, state)
        sync_folder(directory)
    except OSError as error:  # another process may have been faster
        failure = f"cannot store prepared tokens: {error}"
    prepared = _opened(folder)
    if prepared is None:
        raise UserError(f"data.cache_dir={directory}: {failure}")
    return prepared


def checksum_once(directory: Path, path: Path) -> str:
    """Return the SHA-256 of a file; cache the checksum of a large file in a folder, by path, size and time."""
    status = path.stat()
    if status.st_size < LARGE_FILE_BYTES:
        return file_checksum(path)
    key = cache_key(
        "checksum",
        path.resolve(),
        status.st_size,
        status.st_mtime_ns,
    )
    _, description = cached(
        directory,
        key,
        lambda _: {"sha256": file_checksum(path)},
    )
    return str(description["sha256"])


def _opened(folder: Path) -> Prepared | None:
    """Return arrays and description of a folder; None if it is missing or damaged."""
    try:
        state = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        arrays = {}
        for path in _array_files(folder):
            arrays[path.stem] = _mapped_array(path)
        if state["sizes"] != _sizes(folder):
            return None
        return arrays, state["description"]
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _array_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != DESCRIPTION]


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in _array_files(folder)}


def _mapped_array(path: Path) -> np.ndarray:
    dtype = path.suffix[1:]
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
