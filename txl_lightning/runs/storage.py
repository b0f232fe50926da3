"""Write checkpoint files atomically and detect damaged ones by a checksum inside the file."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import torch

from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_atomically

OF_FRAME = b"frames="  # before the checksum
OF_FILE = b"sha256="  # up to version 0.4.0
COMMENT_LEN = len(OF_FRAME) + 64
# The end record of a zip archive; its last two bytes are the length of the comment that follows it.
END_RECORD, END_RECORD_LEN = b"PK\5\6", 22
LENGTHS_OFFSET = 26  # in the header of a record of a zip archive: lengths of its name and of a further field
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
DAMAGED = "is damaged: its checksum is not the one stored in the file"
OLDER = "was written by a version before 0.5: txl_lightning 0.5.0 reads it"
UNREADABLE = "is not a checkpoint, or was cut short (torch cannot read it)"


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: a reader finds the old file or a new one that torch can open.

    The file is that of `torch.save`, with `frame_checksum` as the comment of the zip archive: torch has computed the
    CRC-32 of every tensor, so that no tensor is hashed again.

    Args:
        contents: plain containers and tensors.
        path: path of the checkpoint; its folder must exist.

    Raises:
        OSError: the disk is full or the folder is not writable; `path` is unchanged.
        pickle.UnpicklingError: the contents are not plain; `path` is unchanged.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w+b") as file:
            try:
                torch.save(contents, file)
            except RuntimeError as error:  # torch's own, raised while it closes the archive
                raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
            file.seek(-2, os.SEEK_END)  # the length of the archive's comment, which zip readers ignore
            file.write(struct.pack("<H", COMMENT_LEN) + b" " * COMMENT_LEN)
            found = frame_checksum(file)
            file.seek(-COMMENT_LEN, os.SEEK_END)
            file.write(OF_FRAME + found)
        torch.load(temporary, map_location="cpu", weights_only=True, mmap=True)

    write_atomically(path, write)


def frame_checksum(file: BinaryIO) -> bytes:
    """Return the SHA-256 of a checkpoint without the data of its records, in hexadecimal.

    Among what is hashed are the CRC-32 of the data, so that both together leave no byte unchecked.
    """
    digest, end = hashlib.sha256(), 0
    for record in sorted(ZipFile(file).infolist(), key=lambda record: record.header_offset):
        file.seek(record.header_offset + LENGTHS_OFFSET)
        name_len, extra_len = struct.unpack("<HH", file.read(4))
        start = record.header_offset + LENGTHS_OFFSET + 4 + name_len + extra_len
        file.seek(end)
        digest.update(file.read(start - end))
        end = start + record.compress_size
    file.seek(end)
    digest.update(file.read()[:-COMMENT_LEN])
    return digest.hexdigest().encode()


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
            if end.startswith(OF_FRAME):
                intact = end == OF_FRAME + frame_checksum(file) and ZipFile(file).testzip() is None
                require(intact, option, path, DAMAGED)
            elif end.startswith(OF_FILE):
                raise OptionError(option, path, OLDER)
            else:
                has_no_comment = end[-END_RECORD_LEN:].startswith(END_RECORD) and end.endswith(b"\0\0")
                require(has_no_comment, option, path, UNREADABLE)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OptionError:
        raise
    except OSError as error:  # the first one from a place before the file's begin, as a damaged directory names it
        raise OptionError(option, path, DAMAGED if error.errno == errno.EINVAL else str(error)) from error
    except Exception as error:  # torch's errors for files of other kinds have no common base class
        raise OptionError(option, path, UNREADABLE) from error
