"""Variables of a TensorFlow checkpoint (V2, "tensor bundle"), read without TensorFlow and without running code.

    PREFIX.index                  sorted table: "" -> header, the name of a variable -> its place and checksum
    PREFIX.data-00000-of-00001    raw little-endian numbers; large checkpoints have several such shards

The values of the table are messages of Protocol Buffers, of which the needed fields are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.runs.convert.crc32c import crc32c, masked
from txl_lightning.runs.convert.sorted_table import FormatError, Reader, read_table

BFLOAT16 = 14
TYPES = {
    **{1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?"},
    **{BFLOAT16: "<u2", 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"},
}
NO_MESSAGE = "is not an index of a TensorFlow checkpoint: its values have another format"


@dataclass(frozen=True)
class Variable:
    """Place of a variable in a checkpoint.

    Args:
        name: as in the graph, without `:0`.
        dtype: number of TensorFlow's `DataType`.
        shape: sizes of the axes.
        shard: number of the data file.
        offset: first byte in it.
        size: bytes.
        checksum: masked CRC-32C of these bytes.
        sliced: whether it is stored in slices, under other names.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class TensorBundle:
    """Variables of one checkpoint; the index is read at once, a variable when it is asked for.

    Args:
        prefix: path of the checkpoint without `.index`.

    Attributes:
        variables: by name, in the order of the index.

    Raises:
        UserError: the index is missing, damaged, or not of a TensorFlow checkpoint.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        index = prefix.with_name(f"{prefix.name}.index")
        try:
            entries = dict(read_table(index.read_bytes()))
            header = _fields(entries.pop(b"", b""))
            self.n_shards = _number(header, 1)
            if _number(header, 2):
                raise FormatError("is of a big-endian machine, which is not supported")
            found = [_variable(name.decode(errors="replace"), value) for name, value in entries.items()]
        except FormatError as error:
            raise UserError(f"{index}: {error}") from error
        except OSError as error:
            raise UserError(f"{index}: cannot be read ({error.strerror})") from error
        self.variables = {variable.name: variable for variable in found}

    def read(self, name: str) -> np.ndarray:
        """Return a variable after comparing its checksum; bfloat16 as float32, everything else in its own type.

        Raises:
            UserError: its data file is missing, cut short or damaged, or its type is not supported.
        """
        variable = self.variables[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{variable.shard:05d}-of-{self.n_shards:05d}")
        try:
            return _read(variable, path)
        except FormatError as error:
            raise UserError(f"{path}: {name} {error}") from error
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _read(variable: Variable, path: Path) -> np.ndarray:
    if variable.sliced:
        raise FormatError("is stored in slices (a partitioned variable), which is not supported")
    if variable.dtype not in TYPES:
        raise FormatError(f"has a type that is not supported (DataType {variable.dtype})")
    dtype = np.dtype(TYPES[variable.dtype])
    if variable.size != dtype.itemsize * math.prod(variable.shape):
        raise FormatError(f"has {variable.size} bytes, which is not its shape {list(variable.shape)}")
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < variable.offset + variable.size:
            raise FormatError("was cut off: the file is too short")
        file.seek(variable.offset)
        values = np.fromfile(file, dtype, variable.size // dtype.itemsize)
    if masked(crc32c(values.view(np.uint8))) != variable.checksum:
        raise FormatError("is damaged: its bytes have another checksum than the index says")
    if variable.dtype == BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(variable.shape)


def _variable(name: str, message: bytes) -> Variable:
    """Read a BundleEntryProto."""
    fields = _fields(message)
    shape = tuple(_number(_fields(size), 1) for shape in fields.get(2, []) for size in _fields(shape).get(2, []))
    dtype, shard, offset, size, checksum = (_number(fields, field) for field in (1, 3, 4, 5, 6))
    return Variable(name, dtype, shape, shard, offset, size, checksum, sliced=7 in fields)


def _number(fields: dict[int, list[int | bytes]], field: int) -> int:
    """Return a field that is a number; 0 where the message lacks it."""
    value = fields.get(field, [0])[-1]
    if isinstance(value, bytes):
        raise FormatError(NO_MESSAGE)
    return value


def _fields(message: int | bytes) -> dict[int, list[int | bytes]]:
    """Return the fields of a message of Protocol Buffers by number: numbers, or the bytes of what has a length."""
    if isinstance(message, int):
        raise FormatError(NO_MESSAGE)
    fields: dict[int, list[int | bytes]] = {}
    for field, value in _pairs(Reader(message)):
        fields.setdefault(field, []).append(value)
    return fields


def _pairs(reader: Reader) -> Iterator[tuple[int, int | bytes]]:
    while reader.left:
        key = reader.varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, reader.varint()
        elif kind == 2:
            yield key >> 3, reader.take(reader.varint())
        elif kind in (1, 5):
            yield key >> 3, reader.fixed(8 if kind == 1 else 4)
        else:
            raise FormatError(NO_MESSAGE)
