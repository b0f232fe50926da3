"""Cache of encoded tokens: prepared once, memory-mapped afterwards."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.files import sync_folder, write_json

PREPARATION_VERSION = 2
HEADER_BYTES = 128


def cache_key(*parts: object) -> str:
    """Return a folder name that changes with the inputs of a preparation and with `PREPARATION_VERSION`."""
    return hashlib.sha256(json.dumps([PREPARATION_VERSION, *map(str, parts)]).encode()).hexdigest()[:32]


class ArrayWriter:
    """Writer of a one-dimensional `.npy` file, chunk by chunk; `np.load` can map the file after `with` ends.

    Args:
        path: of the file, which must not exist yet.
        dtype: of the array.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file = path.open("xb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, chunk: np.ndarray) -> None:
        """Append numbers to the array."""
        self._file.write(np.ascontiguousarray(chunk, dtype=self.dtype).data)
        self.length += len(chunk)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._file.seek(0)
                self._file.write(self._header())
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _header(self) -> bytes:
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(header, {**description, "shape": (self.length,)})
        assert header.tell() == HEADER_BYTES  # NumPy pads headers, so that every length needs the same space
        return header.getvalue()


def cached(
    directory: Path, key: str, prepare: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the memory-mapped arrays and the description in `directory/key`; prepare them first if missing.

    The folder gets its name only when it is complete, so it is either whole or absent. If two processes
    prepare it at the same time, the first to finish wins and the other one uses that result.

    Args:
        directory: of all preparations.
        key: see `cache_key`.
        prepare: writes `NAME.npy` files into the folder that it is given, and returns the description.

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
    return {path.stem: _mapped(path) for path in sorted(folder.glob("*.npy"))}, description


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
    empty = path.stat().st_size <= HEADER_BYTES  # an empty array cannot be memory-mapped
    return np.load(path, mmap_mode=None if empty else "r")
