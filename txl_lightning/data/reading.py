"""Read the files of a corpus in chunks of bytes: whole, cut, unpacked, or with a preparation undone."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from txl_lightning.errors import UserError

SPLITS = ("train", "valid", "test")
WHOLE = "whole"  # the only split of a text that is not cut
CHUNK_BYTES = 1 << 22

HEAD_BYTES = 1 << 13  # that tell the kind of a file


def _open_zstd(file: Any) -> Any:
    import pyarrow  # comes with `datasets`; few need it

    return pyarrow.CompressedInputStream(file, "zstd")


# First bytes of compressed files, and what unpacks them.
COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b\x08": gzip.open,
    b"BZh91AY&SY": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}
FIRST_BYTES = {
    "Parquet": (b"PAR1",),
    "NumPy": (b"\x93NUMPY",),
    "an archive": (b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x04\x22\x4d\x18"),
    "binary": (b"%PDF-", b"{\\rtf", b"\x7fELF", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"%!PS"),
}
BOMS_OF_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Alignment = Literal["byte", "char", "line"]
Format = Literal["plain", "numbers", "spaced"]


@dataclass(frozen=True)
class Part:
    """Consecutive part of one file.

    Args:
        path: path of the file; a compressed file is unpacked while it is read.
        start: first byte, or id; a float is a fraction of the file.
        stop: byte or id after the last; a float is a fraction of the file, None is the end of the file.
        alignment: unit that is never cut; a cut moves forward to the next UTF-8 character or line. A line without a
            line break at the end of the file gets one.
        format: `numbers` and `spaced` are the output of the original's scripts for enwik8 (a number for every byte,
            `10` written as a line break) and text8 (spaces between characters, `_` for a space). For ids their type.
    """

    path: Path
    start: int | float = 0
    stop: int | float | None = None
    alignment: Alignment = "byte"
    format: str = "plain"


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
    if len(paths) == 1:
        shares = np.cumsum(fractions)[:-1].tolist()
        return by_split(Part(paths[0], start, stop, alignment) for start, stop in pairwise([0, *shares, None]))
    sizes = []
    for path in paths:
        with mapped(path) as text:
            sizes.append(len(text))
    return cut_parts([Part(path, alignment=alignment) for path in paths], sizes, fractions)


def cut_parts(files: Sequence[Part], sizes: Sequence[int], fractions: Sequence[float]) -> Parts:
    """Cut files, or parts of files, of these sizes, one after the other, into consecutive splits by fractions."""
    ends = np.cumsum(sizes).tolist()
    cuts = [0, *(int(share * ends[-1]) for share in np.cumsum(fractions)[:-1].tolist()), ends[-1]]
    places = list(zip(files, [0, *ends], ends, strict=False))
    return {
        split: [
            replace(
                file,
                start=file.start + max(start - first, 0),
                stop=file.start + stop - first if stop < end else file.stop,
            )
            for file, first, end in places
            if max(start, first) < min(stop, end)
        ]
        for split, (start, stop) in zip(SPLITS, pairwise(cuts), strict=True)
    }


def kind_of(head: bytes) -> str:
    """Return what a file is by its first bytes: text, compressed, Parquet, NumPy, an archive or binary.

    Binary is also what holds a byte 0 and is not UTF-16 with its mark.
    """
    if head.startswith(tuple(COMPRESSIONS)):
        return "compressed"
    for kind, firsts in FIRST_BYTES.items():
        if head.startswith(firsts):
            return kind
    if head[257:262] == b"ustar":
        return "an archive"
    return "binary" if b"\0" in head and not head.startswith(BOMS_OF_UTF_16) else "text"


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file as they are, which tell its kind.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file, memory-mapped; a compressed file is unpacked into a temporary one."""
    try:
        head = first_bytes(path)
        unpack = next((way for first, way in COMPRESSIONS.items() if head.startswith(first)), None)
        with path.open("rb") as given, tempfile.TemporaryFile() if unpack else given as file:
            if unpack:
                with unpack(given) as unpacked:
                    shutil.copyfileobj(unpacked, file, CHUNK_BYTES)
            size = file.seek(0, os.SEEK_END)
            yield mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except (OSError, lzma.LZMAError, zlib.error, EOFError, ImportError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in order, in chunks.

    Raises:
        UserError: a file cannot be read, or does not have its part's `format`.
    """
    for part in parts:
        last = b"\n"
        with mapped(part.path) as text:
            start, stop = _cut(text, part.start, part.alignment), _cut(text, part.stop, part.alignment)
            chunks = (text[at : min(at + CHUNK_BYTES, stop)] for at in range(start, stop, CHUNK_BYTES))
            for chunk in _undo_preparation(chunks, part):
                last = chunk or last
                yield chunk
        if part.alignment == "line" and not last.endswith(b"\n"):
            yield b"\n"  # otherwise the next part would continue the line


def _cut(text: mmap.mmap | bytes, position: int | float | None, alignment: Alignment) -> int:
    """Return the byte position of a cut, moved forward to the start of a character or line."""
    size = len(text)
    start = size if position is None else int(position * size) if isinstance(position, float) else min(position, size)
    if start == len(codecs.BOM_UTF8) and text[:start] == codecs.BOM_UTF8:
        return start
    if alignment == "line" and start > 0:
        return text.find(b"\n", start - 1) + 1 or size
    while alignment == "char" and start < size and text[start] & 0xC0 == 0x80:
        start += 1
    return start


def _undo_preparation(chunks: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the bytes as they were before the original's preparation script."""
    if part.format == "numbers":
        chunks = cut_after(chunks, b" \n")
    for chunk in chunks:
        if part.format == "plain":
            yield chunk
        elif part.format == "spaced":
            yield chunk.replace(b" ", b"").replace(b"_", b" ")
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
        UserError: the bytes are not UTF-8.
    """
    try:
        yield from codecs.iterdecode(chunks, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text ({error.reason}): use data.level=byte, or convert the file") from error
