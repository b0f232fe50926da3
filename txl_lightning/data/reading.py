"""Bytes of the files that a corpus is made of, in chunks: whole, cut, unpacked, or undone preparation."""

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
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from txl_lightning.errors import UserError

CHUNK_BYTES = 1 << 22
# Hashing less than this takes no longer than looking up what was hashed before.
REMEMBERED_FROM = 1 << 24
UNDERSCORE_TO_SPACE = bytes.maketrans(b"_", b" ")

Alignment = Literal["byte", "char", "line"]
Format = Literal["plain", "numbers", "spaced"]


@dataclass(frozen=True)
class Part:
    """A consecutive part of one file.

    Args:
        path: the file; `.xz` means that it has to be unpacked first (see `unpacked`).
        start: its first byte; a float is a fraction of the file.
        stop: the byte after its last; a float is a fraction of the file, None is the file's end.
        alignment: what a cut must not divide: it moves on to the next character (of UTF-8) or line.
        format: `numbers` and `spaced` are what the original's scripts make of enwik8 (a number for every
            byte, `10` written as a line break) and of text8 (spaces between characters, `_` for a space).
    """

    path: Path
    start: int | float = 0
    stop: int | float | None = None
    alignment: Alignment = "byte"
    format: Format = "plain"


def fractions_of(path: Path, fractions: Sequence[float], alignment: Alignment) -> list[Part]:
    """Consecutive parts of a file that together are the whole."""
    cuts: list[float | None] = [0.0, *np.cumsum(fractions)[:-1].tolist(), None]
    return [Part(path, a or 0, b, alignment) for a, b in pairwise(cuts)]


def read(parts: Iterable[Part]) -> Iterator[bytes]:
    """The bytes of some parts, one after the other, in chunks.

    Raises:
        UserError: a file cannot be read, or its `format` is not what it seemed.
    """
    for part in parts:
        try:
            with part.path.open("rb") as file:
                yield from _undone(_between(file, _cut(file, part.start, part), _cut(file, part.stop, part)), part)
        except OSError as error:
            raise UserError(f"{part.path}: cannot be read ({error.strerror or error})") from error


def _cut(file: BinaryIO, position: int | float | None, part: Part) -> int:
    """The byte where a part begins or ends: moved on to where a character or a line begins."""
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


def _undone(chunks: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """The bytes before the original's preparation script."""
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
                raise UserError(f"{part.path}: is neither bytes nor numbers of bytes ({error})") from error
            if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 255:
                raise UserError(f"{part.path}: has a number outside of 0 to 255")
            yield numbers.astype(np.uint8).tobytes()


def cut_after(chunks: Iterable[bytes], separators: bytes) -> Iterator[bytes]:
    """The same bytes in chunks that end with one of the separators (the last one perhaps not)."""
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
    """UTF-8 text of bytes whose chunks may end inside a character.

    Raises:
        UserError: naming the first byte that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = 0
    for chunk in chunks:
        yield _decode(decoder, chunk, before, final=False)
        before += len(chunk)
    _decode(decoder, b"", before, final=True)


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, before: int, final: bool) -> str:
    held_back = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        position = before - held_back + error.start
        raise UserError(f"not UTF-8 text (byte {position}): use data.level=byte, or convert the file") from error


def fingerprint(path: Path, memory: Path | None = None) -> str:
    """SHA-256 of a file; for large ones remembered in the folder `memory` under path, size and time of change.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        status = path.stat()
        name = json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns])
        note = memory / hashlib.sha256(name.encode()).hexdigest() if memory else None
        if note and status.st_size >= REMEMBERED_FROM and note.is_file():
            return note.read_text()
        digest = hashlib.sha256()
        for chunk in read([Part(path)]):
            digest.update(chunk)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if note and status.st_size >= REMEMBERED_FROM:
        _remember(note, digest.hexdigest())
    return digest.hexdigest()


def _remember(note: Path, text: str) -> None:
    unfinished = note.with_name(f".{note.name}.{os.getpid()}")
    # Without the note the next start hashes again: slower, never wrong.
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        unfinished.replace(note)
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)


def unpacked(parts: Sequence[Part], folder: Path) -> list[Part]:
    """The parts with every `.xz` file replaced by an unpacked copy in `folder` (made once).

    Raises:
        UserError: an archive is damaged.
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
