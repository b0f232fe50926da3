"""Cache of encoded tokens: prepared once, memory-mapped afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.files import sync_folder, write_json

PREPARATION_VERSION = 3


def cache_key(*parts: object) -> str:
    """Return a folder name that changes with the inputs of a preparation and with `PREPARATION_VERSION`."""
    return hashlib.sha256(json.dumps([PREPARATION_VERSION, *map(str, parts)]).encode()).hexdigest()[:32]


class ArrayWriter:
    """Writer of a one-dimensional array to the file `NAME.DTYPE`, chunk by chunk (see `array_writer`).

    Attributes:
        length: number of values written.
    """

    def __init__(self, file: Any, dtype: np.dtype) -> None:
        self._file, self._dtype, self.length = file, dtype, 0

    def append(self, chunk: np.ndarray) -> None:
        """Append numbers to the array."""
        self._file.write(np.ascontiguousarray(chunk, dtype=self._dtype).data)
        self.length += len(chunk)


@contextmanager
def array_writer(folder: Path, name: str, dtype: np.dtype) -> Iterator[ArrayWriter]:
    """Yield the writer of an array; it is on disk after `with`."""
    with (folder / f"{name}.{dtype.name}").open("xb") as file:
        yield ArrayWriter(file, dtype)
        file.flush()
        os.fsync(file.fileno())


def cached(
    directory: Path, key: str, prepare: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the memory-mapped arrays and the description in `directory/key`; prepare them first if missing.

    The folder gets its name only when it is complete, so it is either whole or absent. If two processes
    prepare it at the same time, the first to finish wins and the other one uses that result.

    Args:
        directory: folder of all preparations.
        key: see `cache_key`.
        prepare: writes arrays (`array_writer`) into the folder that it is given, and returns the description.

    Raises:
        UserError: the folder cannot be written (permissions, full disk), or `prepare` raised it.
    """
    folder = directory / key
    if not folder.is_dir():
        try:
            _fill(folder, prepare)
        except OSError as error:
            raise UserError(f"data.cache_dir={directory}: cannot store prepared tokens: {error}") from error
    description = json.loads((folder / "description.json").read_text(encoding="utf-8"))
    return {path.stem: _mapped(path) for path in folder.iterdir() if path.suffix != ".json"}, description


def _fill(folder: Path, prepare: Callable[[Path], dict[str, Any]]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_json(unfinished / "description.json", prepare(unfinished))
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # unless another process was faster
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _mapped(path: Path) -> np.ndarray:
    dtype = np.dtype(path.suffix[1:])
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
