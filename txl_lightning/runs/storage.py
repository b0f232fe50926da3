"""Checkpoint files that are whole or not there: written beside, flushed, checksummed, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

MARK = b"sha256="
COMMENT_LEN = len(MARK) + 64
END_RECORD, END_RECORD_LEN = b"PK\5\6", 22  # of a zip archive; its last two bytes are the comment's length
TAIL, BLOCK = 1 << 16, 1 << 22  # readers look for the end record as far from the end


class DamagedFileError(Exception):
    """The bytes of a checkpoint are not those that were written."""


def write_checkpoint(contents: dict[str, Any], path: Path, previous: Path | None = None) -> None:
    """Write `path` so that whoever reads it, whenever, finds the old file or the new one, never a part.

    The file is what `torch.save` makes, with its own SHA-256 as the comment of the zip archive. What was at
    `path` moves to `previous`, if given, once the new file is whole.

    Raises:
        OSError: the disk is full or the directory not writable; `path` and `previous` are as before.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            writer = _Writer(file)
            try:
                torch.save(contents, writer)  # type: ignore[arg-type]
            except RuntimeError:
                if writer.error is None:
                    raise
                raise writer.error from None
        _seal(temporary)

    _replace(path, write, previous)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint, with the same promise as `write_checkpoint`."""
    _replace(target, lambda temporary: shutil.copyfile(source, temporary), None)


def read_file(path: str | Path) -> Any:
    """The contents of a checkpoint on the CPU, without running code in it.

    A file without a checksum (another program's) is read as it is.

    Raises:
        DamagedFileError: it was changed or cut after it was written, or is no checkpoint at all.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        tail = file.read()
        end = tail.rfind(END_RECORD)
        comment = tail[end + END_RECORD_LEN :] if end >= 0 else b""
        declared = tail[end + END_RECORD_LEN - 2 : end + END_RECORD_LEN] if end >= 0 else b""
        file.seek(0)
        if (comment or any(declared)) and comment != MARK + _digest(file, size - len(comment)):
            raise DamagedFileError("is damaged: its bytes do not have the SHA-256 that was written with them")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what the unpickler makes of a file that is none has no common type
        raise DamagedFileError("is not a checkpoint, or cut short (torch cannot read it)") from error


class DurableCheckpoints(TorchCheckpointIO):
    """How Lightning's trainer writes checkpoints here.

    An error of the disk must not end a long training, nor leave the other ranks waiting for the first: it is
    kept in `error` for whoever asked for the checkpoint.

    Attributes:
        error: why the last checkpoint could not be written; None if it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Called on the first rank; `storage_options` may name a file `previous`."""
        self.error = None
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(checkpoint, Path(path), **(storage_options or {}))
        except OSError as error:
            self.error = error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Called on every rank."""
        return read_file(path)


class _Writer:
    """A file for `torch.save` that remembers the disk's own error, which torch replaces with one of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _replace(path: Path, write: Callable[[Path], Any], previous: Path | None) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot; the file itself is on the disk
            os.fsync(directory)
    finally:
        os.close(directory)


def _seal(path: Path) -> None:
    """Append the digest of everything before it as the zip archive's comment, which readers pass over."""
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", COMMENT_LEN))
        size = file.tell()
        file.seek(0)
        digest = _digest(file, size)
        file.seek(size)
        file.write(MARK + digest)


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the next `size` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(BLOCK, size))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()
