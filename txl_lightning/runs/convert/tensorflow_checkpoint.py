"""Checkpoints of TensorFlow, read without it and without running code, and what lies beside those of the paper's code.

The published models lie in two folders, `model/` with the checkpoint and `data/` with `corpus-info.json` and
`cache.pkl`. The source may be the folder of both, that of the checkpoint, or the checkpoint's path. The checkpoint (V2,
"tensor bundle") has these files:

    PREFIX.index                  sorted table of LevelDB: "" -> header, name of a variable -> its place and checksum
    PREFIX.data-00000-of-00001    raw little-endian numbers; large checkpoints have several such shards

Keys and values of the table stand in blocks with checksums. The values are messages of Protocol Buffers, of which the
needed fields are read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.vocabulary import UNKNOWN, Level, Vocabulary
from txl_lightning.errors import OptionError, UserError
from txl_lightning.model.checkpoints.tensorflow import ignored_variables

STATE, INDEX = "checkpoint", ".index"
FLAGS, CORPUS = "config.json", "corpus-info.json"
VOCABULARIES = ("vocab", "vocab.txt", "1b_word_vocab.txt")
PICKLE = "cache.pkl"
FIRST_WORD = re.compile(r"^[ \t]*([^ \t]*)")  # a word may contain white space of Unicode, as in Python 2

BFLOAT16 = 14
TYPES = {  # number of TensorFlow's `DataType` -> type of NumPy
    **{1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?"},
    **{BFLOAT16: "<u2", 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"},
}
FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
TRAILER = 5  # after each block: its compression and its checksum
NO_MESSAGE = "is not an index of a TensorFlow checkpoint: its values have another format"

POLYNOMIAL = 0x82F63B78
ONES = 0xFFFFFFFF
LONGEST = 1 << 22  # bytes of which a checksum is made at once: they stay in the CPU's cache
MOST_PARTS = 1 << 14


class FormatError(Exception):
    """Bytes that are not in the expected format, or changed after they were written."""


def find_checkpoint(source: str) -> Path:
    """Return the path of a checkpoint without `.index`: the one that the file `checkpoint` names, else the newest.

    Raises:
        OptionError: there is none.
    """
    path = Path(source)
    if path.suffix == INDEX and path.is_file():
        return path.with_suffix("")
    if path.with_name(path.name + INDEX).is_file():
        return path
    for folder in (path, path / "model"):
        if (folder / STATE).is_file():
            text = (folder / STATE).read_text(errors="replace")
            named = re.search(r'^model_checkpoint_path: "(?:.*[/\\])?(.+)"', text, re.MULTILINE)
            prefix = folder / (named[1] if named else "")
            if not named or not prefix.with_name(prefix.name + INDEX).is_file():
                problem = f"names {prefix.name}, but there is no {prefix.name}{INDEX}" if named else "names none"
                raise OptionError("source", source, f"its file {STATE} {problem}")
            return prefix
        if found := sorted(folder.glob(f"*{INDEX}"), key=_step):
            return found[-1].with_suffix("")
    problem = f"has no checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…)" if path.is_dir() else "no such file"
    raise OptionError("source", source, problem)


def read_variables(prefix: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the variables of the model, and the names of those that were left out: the optimizer's.

    Raises:
        UserError: a file is missing, damaged or not of a TensorFlow checkpoint.
    """
    bundle = TensorBundle(prefix)
    ignored = ignored_variables(bundle.variables)
    return {name: bundle.read(name) for name in bundle.variables if name not in ignored}, ignored


def read_flags(prefix: Path) -> dict[str, Any]:
    """Return the flags in `config.json` beside the checkpoint, if there is one, and the sizes in `corpus-info.json`.

    Raises:
        UserError: a file is not a dictionary in JSON, or both have another vocabulary size.
    """
    path = prefix.with_name(FLAGS)
    flags = read_json(path) if path.is_file() else {}
    if (corpus := _beside(prefix, CORPUS)) is not None:
        info = read_json(corpus)
        size = info.get("vocab_size")
        if size is not None and flags.setdefault("n_token", size) != size:
            raise UserError(f"{corpus}: vocab_size={size}, but {FLAGS} has n_token={flags['n_token']}")
        flags.setdefault("cutoffs", info.get("cutoffs"))
    return flags


def read_json(path: Path) -> dict[str, Any]:
    """Return the dictionary that a file of JSON holds.

    Raises:
        OptionError: the file holds something else.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise OptionError("source", path.parent, f"its {path.name} must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise OptionError("source", path.parent, f"its {path.name} must be a dictionary of options")
    return content


def find_vocabulary(prefix: Path) -> Path | None:
    """Return the text file with the symbols of a published model, or None if the corpus has to give them.

    Raises:
        UserError: they are only in a pickle, which is never opened.
    """
    found = [path for name in VOCABULARIES if (path := _beside(prefix, name)) is not None]
    if found:
        return found[0]
    if (pickle := _beside(prefix, PICKLE)) is not None:
        raise UserError(
            f"{pickle}: is never unpickled, since that runs code of the file; write its symbols to "
            f"{pickle.with_name('vocab')}, one per line (docs/published-models.md says how), or choose "
            "vocabulary=corpus for those of data=…"
        )
    return None


def read_vocabulary(path: str | Path, level: Level) -> Vocabulary:
    """Read symbols in the order of their numbers: the first word of every line, each symbol once.

    Bytes are written as numbers and the space as `_`, as the paper's code prepares enwik8 and text8.

    Raises:
        OptionError: the file cannot be read, or a line is not a symbol of the level.
    """
    try:
        lines = Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("vocabulary", path, f"cannot be read as UTF-8 text ({error})") from error
    symbols: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        if symbol := line if level == "char" and len(line) == 1 else FIRST_WORD.findall(line)[0]:
            if level == "byte" and not (symbol.isascii() and symbol.isdigit() and int(symbol) < 256):
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a byte, 0 … 255 (data.level)")
            if level == "char" and len(symbol) > 1 and symbol != UNKNOWN:
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a character (data.level)")
            symbols[chr(int(symbol)) if level == "byte" else symbol] = None
    if level == "char" and " " not in symbols:
        return Vocabulary(level, tuple(" " if symbol == "_" else symbol for symbol in symbols))
    return Vocabulary(level, tuple(symbols))


def _beside(prefix: Path, name: str) -> Path | None:
    """Return a file of that name in the folder of the checkpoint, or in `data/` in it or beside it."""
    folders = (prefix.parent, prefix.parent / "data", prefix.parent.absolute().parent / "data")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _step(index: Path) -> tuple[int, float]:
    """Return the order of checkpoints in a folder: by the step in the name, then by time."""
    step = re.search(r"-(\d+)$", index.stem)
    return int(step[1]) if step else -1, index.stat().st_mtime


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


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the keys and values of a table, in the order of the keys.

    Raises:
        FormatError: it is not a table, was cut short, or a checksum does not match.
    """
    if len(content) < FOOTER or content[-len(MAGIC) :] != MAGIC:
        raise FormatError("is not an index of a TensorFlow checkpoint, or was cut short")
    footer = Reader(content[-FOOTER:])
    for _ in range(2):  # the block of metadata, which is not read
        footer.varint()
    for _, handle in _entries(_block(content, footer)):
        yield from _entries(_block(content, Reader(handle)))


class Reader:
    """Position in bytes, which reading moves on; reading beyond the end raises FormatError."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    @property
    def left(self) -> int:
        """Number of bytes that were not read."""
        return len(self.content) - self.position

    def take(self, n: int) -> bytes:
        """Return the next n bytes."""
        if not 0 <= n <= self.left:
            raise FormatError("is damaged: a length in it is too large")
        self.position += n
        return self.content[self.position - n : self.position]

    def varint(self) -> int:
        """Return the next number of variable length: 7 bits in a byte, the lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("is damaged: a number in it is too long")

    def fixed(self, n: int) -> int:
        """Return the next number of n bytes, the lowest first."""
        return int.from_bytes(self.take(n), "little")


def _block(content: bytes, handle: Reader) -> bytes:
    """Return a block after comparing its checksum."""
    offset, size = handle.varint(), handle.varint()
    end = offset + size
    if end + TRAILER > len(content):
        raise FormatError("was cut short")
    if masked(crc32c(content[offset : end + 1])) != int.from_bytes(content[end + 1 : end + TRAILER], "little"):
        raise FormatError("is damaged: a block of it has another checksum than the one stored in the file")
    if content[end]:
        raise FormatError("is compressed, which that of a TensorFlow checkpoint never is")
    return content[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the entries of a block: each key has the number of bytes that it shares with the key before."""
    n_restarts = int.from_bytes(block[-4:], "little")
    reader, key = Reader(block[: max(0, len(block) - 4 * (n_restarts + 1))]), b""
    while reader.left:
        n_shared, n_more, n_value = reader.varint(), reader.varint(), reader.varint()
        key = key[:n_shared] + reader.take(n_more)
        yield key, reader.take(n_value)


def crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """Return the CRC-32C (Castagnoli) of bytes (RFC 3720, appendix B.4).

    A CRC without its first and last inversion is linear over GF(2): the state after some bytes is the state after the
    same bytes from zero, plus the first state moved on by as many zero bytes. So parts of the data are read side by
    side, each from zero, and joined afterwards.
    """
    values, state = np.frombuffer(data, np.uint8), ONES
    for start in range(0, len(values), LONGEST):
        part = values[start : start + LONGEST]
        moved = _apply(_zero_bytes(len(part)), np.array([state], np.uint32))
        state = int(moved[0]) ^ _read_parts(part)
    return state ^ ONES


def masked(crc: int) -> int:
    """Return the checksum as TensorFlow stores it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ONES


def _read_parts(values: np.ndarray) -> int:
    """Return the state after bytes from zero; zeros in front, which do not change it, fill up the parts."""
    n_parts = min(MOST_PARTS, 1 << (len(values) // 64).bit_length())
    n = -(-len(values) // n_parts)
    padded = np.zeros(n_parts * n, np.uint8)
    padded[len(padded) - len(values) :] = values
    states = np.zeros(n_parts, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(n_parts, n).T):
        states = _byte_table()[(states ^ column) & 0xFF] ^ states >> 8
    step = _zero_bytes(n)
    while len(states) > 1:
        states = _apply(step, states[::2]) ^ states[1::2]
        step = _apply(step, step)
    return int(states[0])


@cache
def _byte_table() -> np.ndarray:
    """Return the state after one byte from zero, for all its values."""
    state: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = (state >> 1) ^ np.where(state & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return state


@cache
def _zero_bytes(n: int) -> np.ndarray:
    """Return the matrix that moves a state on by n zero bytes: its column k is where bit k goes."""
    if n == 1:
        states = np.uint32(1) << np.arange(32, dtype=np.uint32)
        return _byte_table()[states & 0xFF] ^ states >> 8
    half = _zero_bytes(n // 2)
    whole = _apply(half, half)
    return _apply(_zero_bytes(1), whole) if n % 2 else whole


def _apply(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the product of a matrix with every state."""
    moved = np.zeros_like(states)
    for bit in range(32):
        moved ^= np.where(states >> np.uint32(bit) & 1, matrix[bit], np.uint32(0))
    return moved
