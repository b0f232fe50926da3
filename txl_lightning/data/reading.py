"""Read the files of a corpus in chunks of bytes: whole, cut, unpacked, or with a preparation undone."""

from __future__ import annotations

import codecs
import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.files import file_checksum, write_text

CHUNK_BYTES = 1 << 22
# Hashing a smaller file is as fast as looking up its stored checksum.
STORED_FROM_BYTES = 1 << 24
UNDERSCORE_TO_SPACE = bytes.maketrans(b"_", b" ")

Alignment = Literal["byte", "char", "line"]
Format = Literal["plain", "numbers", "spaced"]


@dataclass(frozen=True)
class Part:
    """Consecutive part of one file.

    Args:
        path: path of the file; an `.xz` file must be unpacked first (see `unpacked`).
        start: first byte; a float is a fraction of the file.
        stop: byte after the last; a float is a fraction of the file, None is the end of the file.
        alignment: unit that is never cut; a cut moves forward to the next UTF-8 character or line. A line without a
            line break at the end of the file gets one.
        format: `numbers` and `spaced` are the output of the original's scripts for enwik8 (a number for every byte,
            `10` written as a line break) and text8 (spaces between characters, `_` for a space).
    """

    path: Path
    start: int | float = 0
    stop: int | float | None = None
    alignment: Alignment = "byte"
    format: Format = "plain"


def fractions_of(path: Path, fractions: Sequence[float], alignment: Alignment) -> list[Part]:
    """Split a file into consecutive parts by fractions with sum 1."""
    cuts: list[float | None] = [0.0, *np.cumsum(fractions)[:-1].tolist(), None]
    return [Part(path, a or 0, b, alignment) for a, b in pairwise(cuts)]


def fractions_of_all(paths: Sequence[Path], fractions: Sequence[float], alignment: Alignment) -> list[list[Part]]:
    """Split the text of several files, one after the other, into consecutive lists of parts, of one file each.

    A file that a cut goes through has a part in both lists.

    Raises:
        UserError: a file cannot be read.
    """
    try:
        ends = np.cumsum([path.stat().st_size for path in paths]).tolist()
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error
    cuts = [0, *(int(part * ends[-1]) for part in np.cumsum(fractions)[:-1]), ends[-1]]
    files = list(zip(paths, [0, *ends], ends, strict=False))
    return [
        [
            Part(path, max(a - first, 0), b - first if b < end else None, alignment)
            for path, first, end in files
            if max(a, first) < min(b, end)
        ]
        for a, b in pairwise(cuts)
    ]


def read(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in order, in chunks.

    Raises:
        UserError: a file cannot be read, or does not have its part's `format`.
    """
    for part in parts:
        last = b"\n"
        try:
            with part.path.open("rb") as file:
                chunks = _between(file, _cut(file, part.start, part), _cut(file, part.stop, part))
                for chunk in _undo_preparation(chunks, part):
                    last = chunk or last
                    yield chunk
        except OSError as error:
            raise UserError(f"{part.path}: cannot be read ({error.strerror or error})") from error
        if part.alignment == "line" and not last.endswith(b"\n"):
            yield b"\n"  # otherwise the next part would continue the line


def _cut(file: BinaryIO, position: int | float | None, part: Part) -> int:
    """Return the byte position of a cut, moved forward to the start of a character or line."""
    size = os.fstat(file.fileno()).st_size
    if position is None:
        return size
    start = min(int(position * size) if isinstance(position, float) else position, size)
    if part.alignment == "line" and start > 0:
        file.seek(start - 1)
        file.readline()
        start = file.tell()
    elif part.alignment == "char":
        file.seek(start)
        while (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:
            start += 1
    return start


def _between(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (chunk := file.read(min(CHUNK_BYTES, stop - start))):
        start += len(chunk)
        yield chunk


def _undo_preparation(chunks: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the bytes as they were before the original's preparation script."""
    if part.format == "plain":
        yield from chunks
    elif part.format == "spaced":
        for chunk in chunks:
            yield chunk.replace(b" ", b"").translate(UNDERSCORE_TO_SPACE)
    else:
        for chunk in cut_after(chunks, b" \n"):
            try:
                numbers = np.array(chunk.replace(b"\n", b" 10 ").split(), dtype=np.int64)
            except ValueError as error:
                raise UserError(f"{part.path}: must hold numbers from 0 to 255 ({error})") from error
            if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 255:
                raise UserError(f"{part.path}: must hold numbers from 0 to 255")
            yield numbers.astype(np.uint8).tobytes()


def cut_after(chunks: Iterable[bytes], separators: bytes) -> Iterator[bytes]:
    """Yield the same bytes in chunks that end with one of the separators (except perhaps the last chunk)."""
    rest: list[bytes] = []
    for chunk in chunks:
        end = 1 + max(chunk.rfind(separators[i : i + 1]) for i in range(len(separators)))
        if end:
            yield b"".join([*rest, chunk[:end]])
            rest = []
        rest.append(chunk[end:])
    if last := b"".join(rest):
        yield last


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode UTF-8 from chunks that may end inside a character.

    Raises:
        UserError: the bytes are not UTF-8; the message has the position of the first wrong byte.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = 0
    for chunk, final in chain(((chunk, False) for chunk in chunks), [(b"", True)]):
        held_back = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            position = before - held_back + error.start
            raise UserError(f"not UTF-8 text (byte {position}): use data.level=byte, or convert the file") from error
        before += len(chunk)
        if text:
            yield text


def fingerprint(path: Path, known: Path | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal; large files are hashed once.

    Args:
        path: path of the file.
        known: folder of stored checksums, by path, size and modification time; None to store none.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        status = path.stat()
        name = json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns])
        stored = known / hashlib.sha256(name.encode()).hexdigest() if known else None
        if stored and status.st_size >= STORED_FROM_BYTES and stored.is_file():
            return stored.read_text()
        found = file_checksum(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if stored and status.st_size >= STORED_FROM_BYTES:
        with suppress(OSError):  # the next run hashes the file again
            stored.parent.mkdir(parents=True, exist_ok=True)
            write_text(stored, found)
    return found


def unpacked(parts: Sequence[Part], folder: Path) -> list[Part]:
    """Unpack every `.xz` file into `folder` and return the parts with the unpacked files.

    Raises:
        UserError: an `.xz` file is damaged.
    """
    plain = []
    for part in parts:
        if part.path.suffix == ".xz":
            target = folder / (hashlib.sha256(str(part.path).encode()).hexdigest()[:16] + ".unpacked")
            if not target.exists():
                try:
                    with lzma.open(part.path) as source, target.open("wb") as file:
                        shutil.copyfileobj(source, file, CHUNK_BYTES)
                except (lzma.LZMAError, EOFError) as error:
                    raise UserError(f"{part.path}: is damaged ({error})") from error
            part = replace(part, path=target)
        plain.append(part)
    return plain
