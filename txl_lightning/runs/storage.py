"""Write checkpoint files atomically and detect damaged ones by a checksum inside the file."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from txl_lightning.files import checksum, write_atomically

CHECKSUM_PREFIX = b"sha256="
COMMENT_LEN = len(CHECKSUM_PREFIX) + 64
# The end record of a zip archive; its last two bytes are the length of the comment that follows it.
END_RECORD, END_RECORD_LEN = b"PK\5\6", 22
TAIL_BYTES = 1 << 16  # zip readers search this far from the end of the file for the end record


class DamagedFileError(Exception):
    """Error of a file that is not a checkpoint, or whose bytes changed after it was written."""


def write_checkpoint(contents: dict[str, Any], path: Path, previous: Path | None = None) -> None:
    """Write a checkpoint atomically: a reader finds the old file or the new one, never a part.

    The file is that of `torch.save`, with its own SHA-256 as the comment of the zip archive.

    Args:
        contents: plain containers and tensors.
        path: of the checkpoint; its folder must exist.
        previous: where to keep the checkpoint that was at `path`; None replaces it.

    Raises:
        OSError: the disk is full or the folder is not writable; `path` and `previous` are unchanged.
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
        _append_checksum(temporary)

    write_atomically(path, write, previous)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint, atomically as in `write_checkpoint`."""
    write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))


def read_file(path: str | Path) -> Any:
    """Return the contents of a checkpoint, on the CPU, without running code stored in the file.

    A file without a checksum (written by another program) is read without that check.

    Raises:
        DamagedFileError: the checksum does not match, or torch cannot read the file.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
        end = tail.rfind(END_RECORD)
        comment = tail[end + END_RECORD_LEN :] if end >= 0 else b""
        comment_len = tail[end + END_RECORD_LEN - 2 : end + END_RECORD_LEN] if end >= 0 else b""
        file.seek(0)
        has_comment = comment or any(comment_len)
        if has_comment and comment != CHECKSUM_PREFIX + checksum(file, size - len(comment)).encode():
            raise DamagedFileError("is damaged: its bytes do not have the SHA-256 that was written with them")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's errors for files of other kinds have no common base class
        raise DamagedFileError("is not a checkpoint, or cut short (torch cannot read it)") from error


class DurableCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoint plugin that writes through `write_checkpoint` and keeps errors of the disk.

    Raising such an error would end a long training run and leave the other ranks waiting for the first one.
    Whoever asked for the checkpoint looks at `error` instead.

    Attributes:
        error: why the last checkpoint could not be written; None if it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write on the first rank; `storage_options` may hold `previous` (see `write_checkpoint`)."""
        self.error = None
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(checkpoint, Path(path), **(storage_options or {}))
        except OSError as error:
            self.error = error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Read on every rank."""
        return read_file(path)


class _Writer:
    """File for `torch.save` that keeps the disk's OSError, which torch replaces with a RuntimeError."""

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


def _append_checksum(path: Path) -> None:
    """Append the SHA-256 of all bytes before it as the zip archive's comment, which zip readers ignore."""
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", COMMENT_LEN))
        size = file.tell()
        file.seek(0)
        digest = checksum(file, size).encode()
        file.seek(size)
        file.write(CHECKSUM_PREFIX + digest)
