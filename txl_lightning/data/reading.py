"""Read the files of a corpus in chunks of bytes: whole, cut, unpacked, or with a preparation undone."""

from __future__ import annotations

import codecs
import hashlib
import json
import lzma
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Literal

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.files import file_checksum, write_text

SPLITS = ("train", "valid", "test")
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
        path: path of the file; an `.xz` file is unpacked while it is read.
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


Parts = dict[str, list[Part]]  # by split


def by_split(parts: Iterable[Part]) -> Parts:
    """Assign one part to each split, in the order train, valid, test."""
    return {split: [part] for split, part in zip(SPLITS, parts, strict=True)}


def cut_into_splits(paths: Sequence[Path], fractions: Sequence[float], alignment: Alignment) -> Parts:
    """Cut the text of files, one after the other, into consecutive splits by fractions with sum 1.

    A file that a cut goes through has a part in both splits.

    Raises:
        UserError: a file cannot be read.
    """
    shares = np.cumsum(fractions)[:-1].tolist()
    if len(paths) == 1:
        return by_split(Part(paths[0], start, stop, alignment) for start, stop in pairwise([0, *shares, None]))
    ends = np.cumsum([_size(path) for path in paths]).tolist()
    cuts = [0, *(int(share * ends[-1]) for share in shares), ends[-1]]
    files = list(zip(paths, [0, *ends], ends, strict=False))
    return {
        split: [
            Part(path, max(start - first, 0), stop - first if stop < end else None, alignment)
            for path, first, end in files
            if max(start, first) < min(stop, end)
        ]
        for split, (start, stop) in zip(SPLITS, pairwise(cuts), strict=True)
    }


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield an open file, unpacked if it is an `.xz` file."""
    try:
        with path.open("rb") as file:
            if path.suffix != ".xz":
                yield file
            else:
                with lzma.open(file) as packed, tempfile.TemporaryFile() as unpacked:
                    shutil.copyfileobj(packed, unpacked, CHUNK_BYTES)
                    yield unpacked
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _size(path: Path) -> int:
    with _opened(path) as file:
        return file.seek(0, os.SEEK_END)


def read(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in order, in chunks.

    Raises:
        UserError: a file cannot be read, or does not have its part's `format`.
    """
    for part in parts:
        last = b"\n"
        with _opened(part.path) as file:
            chunks = _between(file, _cut(file, part.start, part), _cut(file, part.stop, part))
            for chunk in _undo_preparation(chunks, part):
                last = chunk or last
                yield chunk
        if part.alignment == "line" and not last.endswith(b"\n"):
            yield b"\n"  # otherwise the next part would continue the line


def _cut(file: IO[bytes], position: int | float | None, part: Part) -> int:
    """Return the byte position of a cut, moved forward to the start of a character or line."""
    size = file.seek(0, os.SEEK_END)
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


def _between(file: IO[bytes], start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (chunk := file.read(min(CHUNK_BYTES, stop - start))):
        start += len(chunk)
        yield chunk


def _undo_preparation(chunks: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the bytes as they were before the original's preparation script."""
    if part.format == "numbers":
        chunks = cut_after(chunks, b" \n")
    for chunk in chunks:
        if part.format == "plain":
            yield chunk
        elif part.format == "spaced":
            yield chunk.replace(b" ", b"").translate(UNDERSCORE_TO_SPACE)
        else:
            try:
                yield bytes(map(int, chunk.replace(b"\n", b" 10 ").split()))
            except ValueError as error:
                raise UserError(f"{part.path}: must hold numbers from 0 to 255 ({error})") from error


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
    n_read = 0

    def counted() -> Iterator[bytes]:
        nonlocal n_read
        for chunk in chunks:
            n_read += len(chunk)
            yield chunk

    try:
        yield from codecs.iterdecode(counted(), "utf-8")
    except UnicodeDecodeError as error:
        position = n_read - len(error.object) + error.start
        raise UserError(f"not UTF-8 text (byte {position}): use data.level=byte, or convert the file") from error


def fingerprint(path: Path, known: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; large files are hashed once.

    Args:
        path: path of the file.
        known: folder of stored checksums, by path, size and modification time.

    Raises:
        UserError: the file cannot be read, or its checksum cannot be stored.
    """
    try:
        status = path.stat()
        if status.st_size < STORED_FROM_BYTES:
            return file_checksum(path)
        name = json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns])
        stored = known / hashlib.sha256(name.encode()).hexdigest()
        if not stored.is_file():
            known.mkdir(parents=True, exist_ok=True)
            write_text(stored, file_checksum(path))
        return stored.read_text()
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error
