"""Write checkpoint files atomically and detect damaged ones by a checksum inside the file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import checksum, write_atomically

CHECKSUM_PREFIX = b"sha256="
COMMENT_LEN = len(CHECKSUM_PREFIX) + 64
# The end record of a zip archive; its last two bytes are the length of the comment that follows it.
END_RECORD, END_RECORD_LEN = b"PK\5\6", 22
MEMORY = "memory"  # folder beside checkpoints with the memory of several ranks, a file each
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
UNREADABLE = "is not a checkpoint, or was cut short (torch cannot read it)"


def write_checkpoint(contents: dict[str, Any], path: Path, previous: Path | None = None) -> None:
    """Write a checkpoint atomically: a reader finds the old file or a new one that torch can open.

    The file is that of `torch.save`, with its own SHA-256 as the comment of the zip archive.

    Args:
        contents: plain containers and tensors.
        path: path of the checkpoint; its folder must exist.
        previous: where to keep the checkpoint that was at `path`; None replaces it.

    Raises:
        OSError: the disk is full or the folder is not writable; `path` and `previous` are unchanged.
        pickle.UnpicklingError: the contents are not plain; `path` and `previous` are unchanged.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            hashed: Any = HashedFile(file)
            try:
                torch.save(contents, hashed)
            except RuntimeError as error:  # torch's own, raised while it closes the archive
                raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
            assert hashed.end == b"\0\0"
            # The zip archive's comment, which zip readers ignore; the last two bytes are its length.
            file.seek(-2, os.SEEK_END)
            file.write(length := struct.pack("<H", COMMENT_LEN))
            hashed.digest.update(length)
            file.write(CHECKSUM_PREFIX + hashed.digest.hexdigest().encode())
        torch.load(temporary, map_location="cpu", weights_only=True, mmap=True)

    write_atomically(path, write, previous)


class HashedFile:
    """File that is hashed while it is written, but for the `end`: two bytes, which `write_checkpoint` writes again."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.end, self.flush = file, hashlib.sha256(), b"", file.flush

    def write(self, data: memoryview) -> int:
        """Write and hash a block; the last one has at least two bytes."""
        self.digest.update(self.end)
        self.digest.update(data[:-2])
        self.end = bytes(data[-2:])
        return self.file.write(data)


def plain_containers(value: Any) -> Any:
    """Return what a checkpoint can hold: containers and tensors, with Python's numbers in place of NumPy's.

    Raises:
        TypeError: names the class of something else in them, which `read_file` could not read.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if type(value) in (dict, OrderedDict):
        return type(value)((plain_containers(key), plain_containers(part)) for key, part in value.items())
    if type(value) in (list, tuple, set):
        return type(value)(map(plain_containers, value))
    if not isinstance(value, torch.Tensor) and type(value) not in PLAIN:
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")
    return value


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically: in its folder a hard link, into another folder its files of memory first."""
    if source.parent == target.parent:
        with suppress(OSError):  # of a file system without links
            write_atomically(target, lambda temporary: os.link(source, temporary))
            return
    for name in memory_files(source) if source.parent != target.parent else []:
        if (source.parent / name).exists():
            (target.parent / MEMORY).mkdir(exist_ok=True)
            copy_checkpoint(source.parent / name, target.parent / name)
    write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))


def memory_files(path: Path) -> list[str]:
    """Return the files of memory that a checkpoint names; none if it cannot be read or names others.

    Tensors are not read and the checksum is not compared.
    """
    if not path.exists():
        return []
    try:
        return named_files(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    except OSError:
        raise
    except Exception:  # as in `read_file`; a damaged checkpoint needs no memory
        return []


def named_files(contents: Any) -> list[str]:
    """Return the files of memory that the contents of a checkpoint name, relative to its folder.

    Raises:
        UserError: a name is not that of a file in the folder `MEMORY`.
    """
    carried = contents.get("training_memory", {}) if isinstance(contents, dict) else {}
    files = carried.get("files", []) if isinstance(carried, dict) else []
    for name in files if isinstance(files, list) else [[files]]:
        if not isinstance(name, str) or not re.fullmatch(rf"{MEMORY}/\w[\w.-]*", name):
            raise UserError(f"names {name!r} as a file of memory, which is not in its folder {MEMORY}/")
    return files


def remove_unused_memory(folder: Path) -> None:
    """Remove the files of memory in a folder that none of its checkpoints names, a user's own copies included."""
    if (folder / MEMORY).is_dir() and not (folder / MEMORY).is_symlink():
        resumable = (path for path in folder.glob("*.ckpt") if not path.name.startswith("step"))
        used = {file for path in resumable for file in memory_files(path)}
        for path in (folder / MEMORY).iterdir():
            if f"{MEMORY}/{path.name}" not in used:
                path.unlink()


def read_file(path: str | Path, option: str = "checkpoint") -> Any:
    """Return the contents of a checkpoint, on the CPU, without running code stored in the file.

    A file without a checksum (written by another program) is read without that check.

    Args:
        path: path of the file.
        option: name of the command-line option that gave the path, for errors.

    Raises:
        OptionError: the checksum does not match, or torch cannot read the file.
    """
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - COMMENT_LEN))
            end = file.read()
            file.seek(0)
            if end.startswith(CHECKSUM_PREFIX):
                intact = end == CHECKSUM_PREFIX + checksum(file, size - COMMENT_LEN).encode()
                require(intact, option, path, "is damaged: its SHA-256 is not the one stored in the file")
            else:
                has_no_comment = end[-END_RECORD_LEN:].startswith(END_RECORD) and end.endswith(b"\0\0")
                require(has_no_comment, option, path, UNREADABLE)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OptionError:
        raise
    except OSError as error:
        raise OptionError(option, path, str(error)) from error
    except Exception as error:  # torch's errors for files of other kinds have no common base class
        raise OptionError(option, path, UNREADABLE) from error
