"""Folders that are prepared once: whole or absent, and made again if they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.errors import UserError, notice
from txl_lightning.files import expand, file_checksum, new_folder, sync_folder, write_json

PREPARATION_VERSION = 14
DESCRIPTION = "description.json"
LARGE_FILE_BYTES = 1 << 24  # from this size on a file's checksum is cached

Description = dict[str, Any]


class Prepared(NamedTuple):
    """A preparation's folder: its arrays by name, memory-mapped, and its description."""

    folder: Path
    arrays: dict[str, np.ndarray]
    description: Description


def cached(cache_dir: str, inputs: object, prepare: Callable[[Path], Description]) -> Prepared:
    """Open a preparation's folder, whose name is a hash of its inputs; prepare it first if it is missing.

    The folder gets its name only when it is complete and on disk. If two processes prepare it at the same time, the
    first to finish wins and the second uses its result. A damaged folder is prepared again, with a message.

    Args:
        cache_dir: folder for all preparations.
        inputs: all that the result depends on, besides `PREPARATION_VERSION`.
        prepare: writes arrays into the folder that it is given, as files NAME.DTYPE, and returns the description.

    Raises:
        UserError: the folder cannot be written (permissions, full disk), or `prepare` raised it.
    """
    directory = expand(cache_dir)
    key = repr((PREPARATION_VERSION, inputs))
    folder = directory / hashlib.sha256(key.encode()).hexdigest()[:32]
    failure = "it is damaged right after it was written"
    prepared = _opened(folder)
    if prepared is not None:
        return prepared
    try:
        if os.path.lexists(folder):
            notice(f"{folder} is damaged; it is prepared again")
            shutil.rmtree(folder)
        with new_folder(folder) as unfinished:
            description = prepare(unfinished)
            sizes = {}
            for path in unfinished.iterdir():
                sizes[path.name] = path.stat().st_size
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            write_json(unfinished / DESCRIPTION, [description, sizes])
        sync_folder(directory)
    except OSError as error:  # another process may have been faster
        failure = f"cannot store prepared tokens: {error}"
    prepared = _opened(folder)
    if prepared is None:
        raise UserError(f"data.cache_dir={directory}: {failure}")
    return prepared


def checksum_once(cache_dir: str, path: Path) -> str:
    """Return a file's SHA-256; a large file's is cached in a folder, by path, size and time."""
    status = path.stat()
    if status.st_size < LARGE_FILE_BYTES:
        return file_checksum(path)
    inputs = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    prepared = cached(cache_dir, inputs, lambda _: {"sha256": file_checksum(path)})
    return str(prepared.description["sha256"])


def mapped(path: Path, dtype: str, offset: int = 0) -> np.ndarray:
    """Return a file as an array, memory-mapped, without its first `offset` bytes."""
    if path.stat().st_size <= offset:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r", offset=offset)


def _opened(folder: Path) -> Prepared | None:
    """Open a folder; return None if it is missing or damaged."""
    try:
        description, sizes = json.loads((folder / DESCRIPTION).read_bytes())
        arrays = {}
        for name, size in sizes.items():
            path = folder / name
            if path.stat().st_size != size:
                return None
            arrays[path.stem] = mapped(path, path.suffix[1:])
        return Prepared(folder, arrays, description)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
