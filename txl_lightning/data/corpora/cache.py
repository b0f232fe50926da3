"""Encoded tokens, prepared once and memory-mapped afterwards."""

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

PREPARATION_VERSION = 2
HEADER_BYTES = 128


def cache_key(*parts: object) -> str:
    """A name for a preparation: changes with its inputs and with `PREPARATION_VERSION`."""
    return hashlib.sha256(json.dumps([PREPARATION_VERSION, *map(str, parts)]).encode()).hexdigest()[:32]


class ArrayWriter:
    """A one-dimensional `.npy` file that grows chunk by chunk; `np.load` can map it once it is closed.

    Args:
        path: the file, which must not exist.
        dtype: type of its numbers.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file = path.open("xb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, chunk: np.ndarray) -> None:
        """Write some more numbers."""
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
        """NumPy pads headers so that the length can grow in place: every length gives the same size."""
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(header, {**description, "shape": (self.length,)})
        assert header.tell() == HEADER_BYTES
        return header.getvalue()


def cached(
    directory: Path, key: str, prepare: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Memory-mapped arrays and their description from `directory/key`, prepared if they are not there.

    `prepare` writes `NAME.npy` files into the folder that it is given and returns the description. The
    folder has another name until it is complete, so that it is whole or absent. Of two processes that
    prepare at the same time the first to rename wins, the other uses its result.

    Raises:
        UserError: the folder cannot be written (permissions, full disk), or what `prepare` raises.
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
        description = json.dumps(prepare(unfinished))
        with (unfinished / "description.json").open("w", encoding="utf-8") as file:
            file.write(description)
            file.flush()
            os.fsync(file.fileno())
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _mapped(path: Path) -> np.ndarray:
    """The array of a `.npy` file; an empty one cannot be mapped."""
    empty = path.stat().st_size <= HEADER_BYTES
    return np.load(path, mmap_mode=None if empty else "r")
