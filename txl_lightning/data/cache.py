"""Folders that are prepared once: whole or absent, and made again if they are damaged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.errors import UserError, notice
from txl_lightning.files import PART, expand, file_checksum, new_folder, sync_folder, write_json

PREPARATION_VERSION = 13
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
    prepared = _opened(folder)
    if prepared is not None:
        return prepared
    failure = f"{folder} is damaged right after it was written"
    try:
        if os.path.lexists(folder):
            notice(f"data.cache_dir={directory}: {folder} is damaged; it is prepared again")
            shutil.rmtree(folder)
        with prepared_folder(folder) as unfinished:
            description = prepare(unfinished)
            sizes = {}
            for path in unfinished.iterdir():
                sizes[path.name] = path.stat().st_size
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            state = {"description": description, "sizes": sizes}
            write_json(unfinished / DESCRIPTION, state)
        sync_folder(directory)
    except OSError as error:  # another process may have been faster
        failure = f"cannot store prepared tokens: {error}"
    prepared = _opened(folder)
    if prepared is None:
        raise UserError(f"data.cache_dir={directory}: {failure}")
    return prepared


@contextmanager
def prepared_folder(path: Path) -> Iterator[Path]:
    """Give the block a temporary folder. It becomes `path` as a whole; after an error nothing remains.

    Folders left beside it by killed processes are removed, unless another process prepares one there. Every process
    shares a lock on the parent folder while it writes; the lock ends when the process is killed.

    Raises:
        OSError: the disk is full or the folder is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # another process holds it, or the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in path.parent.glob(f"{PART}*"):
                shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        with new_folder(path) as folder:
            yield folder
    finally:
        os.close(lock)


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
    return np.memmap(
        path,
        dtype,
        mode="r",
        offset=offset,
    )


def _opened(folder: Path) -> Prepared | None:
    """Open a folder; return None if it is missing or damaged."""
    try:
        state = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        arrays = {}
        for name, size in state["sizes"].items():
            path = folder / name
            if path.stat().st_size != size:
                return None
            arrays[path.stem] = mapped(path, path.suffix[1:])
        return Prepared(folder, arrays, state["description"])
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
