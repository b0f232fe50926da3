"""Checkpoints of TensorFlow, read without it and without running code, and what lies beside those of the paper's code.

The published models lie in two folders, `model/` with the checkpoint and `data/` with `corpus-info.json` and
`cache.pkl`. The source may be the folder of both, that of the checkpoint, or the checkpoint's path. The checkpoint (V2,
"tensor bundle") has these files:

    PREFIX.index                  sorted table of LevelDB: "" -> header, name of a variable -> its place and checksum
    PREFIX.data-00000-of-00001    raw little-endian numbers; large checkpoints have several such shards

Keys and values of the table stand in blocks with checksums. The values are messages of Protocol Buffers, of which the
needed fields are read: `BundleHeaderProto` and `BundleEntryProto` of TensorFlow's `tensor_bundle.proto`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.vocabulary import UNKNOWN, Level, Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.model.checkpoints.tensorflow import ignored_variables

STATE, INDEX = "checkpoint", ".index"
FLAGS, CORPUS = "config.json", "corpus-info.json"
VOCABULARIES = ("vocab", "vocab.txt", "1b_word_vocab.txt")
PICKLE = "cache.pkl"
FIRST_WORD = re.compile(r"^[ \t]*([^ \t]*)")  # a word may contain white space of Unicode, as in Python 2

BFLOAT16 = 14
# Number of TensorFlow's `DataType` -> type of NumPy.
TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", BFLOAT16: "<u2", 19: "<f2"}
N_SHARDS = 1  # field of BundleHeaderProto
DTYPE, SHAPE, SHARD, OFFSET, SIZE, CHECKSUM, SLICES = range(1, 8)  # fields of BundleEntryProto
FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
TRAILER = 5  # after each block: its compression and its checksum

POLYNOMIAL = 0x82F63B78
ONES = 0xFFFFFFFF
PART = 1024  # bytes of which a checksum is made one after another; the parts are read side by side


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
        found = sorted(folder.glob(f"*{INDEX}"), key=_step)
        if (folder / STATE).is_file():
            text = (folder / STATE).read_text(errors="replace")
            named = re.search(r'^model_checkpoint_path: "(?:.*[/\\])?(.+)"', text, re.MULTILINE)
            problem = f"names {named[1]}, but there is no {named[1]}{INDEX}" if named else "names none"
            found = [index for index in found if named and index.name == f"{named[1]}{INDEX}"]
            require(bool(found), "source", source, f"its file {STATE} {problem}")
        if found:
            return found[-1].with_suffix("")
    problem = f"has no checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…)" if path.is_dir() else "no such file"
    raise OptionError("source", source, problem)


def read_flags(prefix: Path) -> dict[str, Any]:
    """Return the flags in `config.json` beside the checkpoint, if there is one, and the sizes in `corpus-info.json`.

    Raises:
        UserError: a file is not a dictionary in JSON, or both have another vocabulary size.
    """
    flags = read_json(prefix.with_name(FLAGS)) if prefix.with_name(FLAGS).is_file() else {}
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
    require(isinstance(content, dict), "source", path.parent, f"its {path.name} must be a dictionary of options")
    return content


def find_vocabulary(prefix: Path) -> Path | None:
    """Return the text file with the symbols of a published model, or None if the corpus has to give them.

    Raises:
        UserError: they are only in a pickle, which is never opened.
    """
    for name in VOCABULARIES:
        if (path := _beside(prefix, name)) is not None:
            return path
    if (pickle := _beside(prefix, PICKLE)) is not None:
        raise UserError(
            f"{pickle}: is never unpickled, since that runs code of the file; write its symbols to "
            f"{pickle.with_name('vocab')}, one per line (docs/published-models.md says how), or choose "
            "vocabulary=corpus for those of data=…"
        )
    return None


def read_vocabulary(path: str | Path, level: Level) -> Vocabulary:
    """Read symbols in the order of their numbers: the first word of every line, each symbol once.

    Bytes are written as numbers and the space as `_`, as the paper's code prepares enwik8 and text8. A file of JSON is
    a dictionary from symbols to numbers (`symbols_of_json`).

    Raises:
        OptionError: the file cannot be read, or a line is not a symbol of the level.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("vocabulary", path, f"cannot be read as UTF-8 text ({error})") from error
    lines = symbols_of_json(text, path) if Path(path).suffix == ".json" else text.split("\n")
    symbols: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        if symbol := line if level == "char" and len(line) == 1 else FIRST_WORD.findall(line)[0]:
            if level == "byte" and not (symbol.isascii() and symbol.isdigit() and int(symbol) < 256):
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a byte, 0 … 255 (data.level)")
            if level == "char" and len(symbol) > 1 and symbol != UNKNOWN:
                raise OptionError("vocabulary", path, f"line {number}: {symbol!r} is not a character (data.level)")
            symbols[chr(int(symbol)) if level == "byte" else symbol] = None
    require(bool(symbols), "vocabulary", path, "has no symbols")
    if level == "char" and " " not in symbols:
        return Vocabulary(level, tuple(" " if symbol == "_" else symbol for symbol in symbols))
    return Vocabulary(level, tuple(symbols))


def symbols_of_json(text: str, path: str | Path) -> list[str]:
    """Return the symbols of a dictionary from symbols to numbers, such as Hugging Face's `vocab.json`, by number.

    Words of a pickle of Python 2 are UTF-8 that was read as Latin-1, `cafÃ©`, since that is how Hugging Face's
    conversion opened the authors' `cache.pkl`. If all symbols of a file can be read so, they become UTF-8 again.

    Raises:
        OptionError: the text is not such a dictionary, with each of the numbers 0 … n - 1 once.
    """
    try:
        numbers = json.loads(text)
        valid = sorted(numbers.values()) == list(range(len(numbers)))
    except (ValueError, TypeError, AttributeError):
        valid = False
    require(valid, "vocabulary", path, "must be a dictionary from symbols to their numbers, 0 … n - 1, in JSON")
    symbols = sorted(numbers, key=numbers.__getitem__)
    try:
        return "\n".join(symbols).encode("latin-1").decode().split("\n")
    except UnicodeError:
        return symbols


def _beside(prefix: Path, name: str) -> Path | None:
    """Return a file of that name in the folder of the checkpoint, or in `data/` in it or beside it."""
    folders = (prefix.parent, prefix.parent / "data", prefix.parent.absolute().parent / "data")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _step(index: Path) -> tuple[int, float]:
    """Return the order of checkpoints in a folder: by the step in the name, then by time."""
    step = re.search(r"-(\d+)$", index.stem)
    return int(step[1]) if step else -1, index.stat().st_mtime


def read_variables(prefix: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the variables of the model, bfloat16 as float32, and the names of those left out: the optimizer's.

    Args:
        prefix: path of the checkpoint without `.index`.

    Raises:
        UserError: a file is missing, damaged, not of a TensorFlow checkpoint, or a type is not supported.
    """
    with _named(index := prefix.with_name(f"{prefix.name}{INDEX}")):
        entries = {key.decode(): _fields(value) for key, value in read_table(index.read_bytes())}
        n_shards = _number(entries.pop(""), N_SHARDS)
    variables, ignored = {}, ignored_variables(entries)
    for name in (name for name in entries if name not in ignored):
        path = prefix.with_name(f"{prefix.name}.data-{_number(entries[name], SHARD):05d}-of-{n_shards:05d}")
        with _named(path, f" {name}"):
            variables[name] = _read(entries[name], path)
    return variables, ignored


@contextmanager
def _named(path: Path, variable: str = "") -> Iterator[None]:
    """Name the file in errors of reading it."""
    try:
        yield
    except FormatError as error:
        raise UserError(f"{path}:{variable} {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, LookupError) as error:  # a table of another program
        raise UserError(f"{path}: is not of a TensorFlow checkpoint") from error


def _read(entry: dict[int, list[Any]], path: Path) -> np.ndarray:
    """Return a variable after comparing its checksum."""
    kind, size = _number(entry, DTYPE), _number(entry, SIZE)
    if SLICES in entry or kind not in TYPES:
        raise FormatError(f"is of a type that is not supported (DataType {kind}{', in slices' * (SLICES in entry)})")
    values = np.fromfile(path, TYPES[kind], size // np.dtype(TYPES[kind]).itemsize, offset=_number(entry, OFFSET))
    if values.nbytes < size:
        raise FormatError("was cut off: the file is too short")
    if masked(crc32c(values)) != _number(entry, CHECKSUM):
        raise FormatError("is damaged: its bytes have another checksum than the index says")
    if kind == BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    shape = [_number(_fields(axis), 1) for axes in entry[SHAPE] for axis in _fields(axes)[2]]
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape)


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the keys and values of a table of LevelDB, in the order of the keys.

    Raises:
        FormatError: it is not a table, was cut short, or a checksum does not match.
    """
    if len(content) < FOOTER or content[-len(MAGIC) :] != MAGIC:
        raise FormatError("is not an index of a TensorFlow checkpoint, or was cut short")
    footer = BytesIO(content[-FOOTER:])
    for _ in range(2):  # the block of metadata, which is not read
        _varint(footer)
    for _, handle in _entries(content, footer):
        yield from _entries(content, BytesIO(handle))


def _entries(content: bytes, handle: BytesIO) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the entries of a block: each key has the number of bytes that it shares with the key before."""
    start, size = _varint(handle), _varint(handle)
    block, checksum = content[start : start + size + 1], content[start + size + 1 : start + size + TRAILER]
    if masked(crc32c(block)) != int.from_bytes(checksum, "little"):
        raise FormatError("is damaged: a block of it has another checksum than the one stored in the file")
    if block[-1]:
        raise FormatError("is compressed, which that of a TensorFlow checkpoint never is")
    n_restarts = int.from_bytes(block[-5:-1], "little")
    end, key = size - 4 * (n_restarts + 1), b""
    reader = BytesIO(block)
    while reader.tell() < end:
        n_shared, n_more, n_value = _varint(reader), _varint(reader), _varint(reader)
        key = key[:n_shared] + reader.read(n_more)
        yield key, reader.read(n_value)


def _varint(reader: BytesIO) -> int:
    """Return the next number of variable length: 7 bits in a byte, the lowest first."""
    value = shift = 0
    while True:
        (byte,) = reader.read(1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message of Protocol Buffers by number: numbers, or the bytes of what has a length."""
    fields: dict[int, list[Any]] = defaultdict(list)
    reader = BytesIO(message)
    while reader.tell() < len(message):
        number, kind = divmod(_varint(reader), 8)
        if kind == 0:
            fields[number].append(_varint(reader))
        elif kind == 2:
            fields[number].append(reader.read(_varint(reader)))
        else:
            fields[number].append(int.from_bytes(reader.read({1: 8, 5: 4}[kind]), "little"))
    return fields


def _number(fields: dict[int, list[Any]], field: int) -> int:
    """Return a field that is a number; Protocol Buffers leave out zeros."""
    return fields[field][-1] if field in fields else 0


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C (Castagnoli) of bytes (RFC 3720, appendix B.4).

    A CRC that begins with a state of zero is linear over GF(2), and zeros in front do not change it. So the data is cut
    into parts, which are read side by side, each from zero. Two neighbours are joined by moving the state of the first
    on by as many zero bytes as the second has. To begin with a state of ones is to invert the first four bytes.
    """
    values = np.frombuffer(data, np.uint8)
    n_parts = len(values) // PART + 1
    padded = np.zeros(n_parts * PART, np.uint8)
    own = padded[len(padded) - len(values) :]
    own[:] = values
    own[:4] ^= 0xFF
    states = np.zeros(n_parts, np.uint32)
    moved = np.uint32(1) << np.arange(32, dtype=np.uint32)  # row k: where bit k goes after as many zero bytes as a part
    for column in np.ascontiguousarray(padded.reshape(n_parts, PART).T):
        states = _after_byte(states ^ column)
        moved = _after_byte(moved)
    while len(states) > 1:
        states = np.pad(states, (len(states) % 2, 0))
        states = _times(moved, states[::2]) ^ states[1::2]
        moved = _times(moved, moved)
    return int(states[0]) ^ ONES ^ ONES >> 8 * len(values)


def masked(crc: int) -> int:
    """Return the checksum as TensorFlow stores it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ONES


@cache
def _byte_table() -> np.ndarray:
    """Return the state after one byte from zero, for all its values."""
    state: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = (state >> 1) ^ (state & 1) * np.uint32(POLYNOMIAL)
    return state


def _after_byte(states: np.ndarray) -> np.ndarray:
    """Return the states after one more byte, which is in their lowest 8 bits already."""
    return _byte_table()[states & 0xFF] ^ states >> 8


def _times(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the product of a matrix with every state, over GF(2)."""
    bits = states[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return np.bitwise_xor.reduce(bits * matrix, axis=1)
