"""Text before it is encoded: parts of files by split, read in chunks; the registry of corpora."""

from __future__ import annotations

import bz2
import codecs
import gzip
import inspect
import io
import lzma
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.schemas import OWN_OPTIONS, DataConfig
from txl_lightning.data import vocabulary
from txl_lightning.data.cache import cache_key, cached
from txl_lightning.data.vocabulary import Level, Vocabulary
from txl_lightning.errors import UserError, require
from txl_lightning.files import expand
from txl_lightning.registry import Guests

SPLITS = ("train", "valid", "test")
FRACTIONS = (0.9, 0.05, 0.05)
WHOLE = "whole"  # the only split of a text that is not cut
CHUNK_BYTES = 1 << 18
HEAD_BYTES = 1 << 16
BOM = codecs.BOM_UTF8

Alignment = Literal["byte", "char", "line"]
ALIGNMENT: dict[str, Alignment] = {
    "byte": "byte",
    "char": "char",
    "word": "line",
    "bpe": "char",
}
MakeVocabulary = Callable[..., Vocabulary]  # from chunks of bytes


def _open_zstd(path: Path, mode: str) -> Any:
    import pyarrow  # comes with `datasets`; few need it

    return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))


UNPACK: dict[str, Callable[[Path, Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}


@dataclass(frozen=True)
class Part:
    """Consecutive part of one file.

    Args:
        path: path of the file; a compressed file is unpacked while it is read.
        start: first byte, or id; a float is a fraction of the file.
        stop: byte or id after the last; a float is a fraction of the file, None is the end of the text.
        alignment: unit that is never cut; a cut moves forward to the next UTF-8 character or line.
        format: `plain` text, or the type of ids.
        offset: bytes before the first id.
        starts: positions in this file where documents begin, if it says so.
    """

    path: Path
    start: int | float = 0
    stop: int | float | None = None
    alignment: Alignment = "byte"
    format: str = "plain"
    offset: int = 0
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)

    def ids(self) -> np.ndarray:
        """Return the ids of the part, memory-mapped."""
        ids = np.memmap(
            self.path,
            self.format,
            mode="r",
            offset=self.offset,
        )
        return ids[self.start : self.stop]

    def bounds(self) -> tuple[int, int]:
        """Return the first byte or id of the part, and the end, where cuts have moved forward."""
        if self.format != "plain":
            first = int(self.start)
            return first, first + len(self.ids())
        with mapped(self.path) as text:
            return _cut(
                text,
                self.start,
                self.alignment,
            ), _cut(text, self.stop, self.alignment)

    def inner_starts(self) -> NDArray[np.int64]:
        """Return where its further documents begin, from its first byte or id on, ascending."""
        if len(self.starts) == 0:
            return self.starts
        start, stop = self.bounds()
        return self.starts[(self.starts > start) & (self.starts < stop)] - start


Parts = dict[str, list[Part]]  # by split


@dataclass(frozen=True)
class Source:
    """Text of a corpus before it is encoded.

    Args:
        name: as reports show it.
        parts: bytes of every split.
        vocabulary: makes the vocabulary from the bytes of the training split.
        published: entries of the `vocabulary` and tokens of splits that a correct preparation has.
        cutoffs: usual cut-offs of the adaptive softmax.
        checksum: checksum of the corpus, if the text of this name is known; another text is reported.
        subwords: tokens of the vocabulary that level bpe trains, unless `data.vocab_size` is given.
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    published: Mapping[str, int] = field(default_factory=dict)
    cutoffs: tuple[int, ...] = ()
    checksum: str | None = None
    subwords: int = 8192


CORPORA: Guests[Callable[[Any], Source]] = Guests(
    "data", "txl_lightning.data.corpus", "txl_lightning.data.{}"
)
LEVELS_OF: dict[str, tuple[str, ...]] = {}  # the levels of every corpus
S = TypeVar("S", bound=Callable[[Any], Source])


def register_corpus(
    name: str, level: Level, *others: Level, options: type[DataConfig] = DataConfig
) -> Callable[[S], S]:
    """Return a decorator that registers a function from the group `data` to a `Source`: `txl train data=NAME`.

    Args:
        name: of the corpus.
        level: usual level at which it is read.
        others: further levels.
        options: dataclass of its options, if it has any of its own.

    Raises:
        OptionError: another function has the name.
    """

    def register(source: S) -> S:
        CORPORA.add(
            name,
            source,
            {"defaults": [f"{name}_schema", "_self_"], "level": level},
        )
        LEVELS_OF[name] = (level, *others)
        OWN_OPTIONS[name] = options
        return source

    return register


def open_vocabulary(config: DataConfig) -> MakeVocabulary:
    """Return what makes the vocabulary of a text that has no published one.

    Symbols rarer than `data.min_count`, by default words that occur once, are `<unk>`, which is so trained. At levels
    bpe and ids another vocabulary is used.

    Raises:
        OptionError: `data.min_count` is not possible.
    """
    if config.level not in ("word", "char"):
        return vocabulary.all_bytes
    least = config.min_count
    if least is None:
        least = 2 if config.level == "word" else 1
    require(least >= 1, "data.min_count", least, "must be an integer >= 1")
    make = vocabulary.words if config.level == "word" else vocabulary.characters_and_unknown
    return partial(make, min_count=least)


def generated(config: DataConfig, text: Callable[..., str], *arguments: Any) -> Path:
    """Return the file with the text `text(*arguments)`, which is generated once for these arguments.

    Raises:
        UserError: the text cannot be stored.
    """
    # Another text may follow from each change of the code.
    code = Path(inspect.getfile(text)).read_text(encoding="utf-8")
    directory = expand(config.cache_dir)
    key = cache_key(code, text.__qualname__, *arguments)

    def write(folder: Path) -> dict[str, Any]:
        length = (folder / "text.uint8").write_text(text(*arguments), "utf-8")
        return {"length": length}

    cached(directory, key, write)
    return directory / key / "text.uint8"


def by_split(parts: Iterable[Part]) -> Parts:
    """Assign one part to each split, in the order train, valid, test."""
    return {
        split: [part]
        for split, part in zip(
            SPLITS,
            parts,
            strict=True,
        )
    }


def cut_file(
    path: Path, fractions: Sequence[float] = FRACTIONS, alignment: Alignment = "byte"
) -> Parts:
    """Cut a file into consecutive splits by fractions with sum 1; it is not unpacked to know its size."""
    first = float(fractions[0])
    second = first + fractions[1]
    return {
        "train": [Part(path, 0, first, alignment)],
        "valid": [Part(path, first, second, alignment)],
        "test": [Part(path, second, None, alignment)],
    }


def cut_parts(parts: Sequence[Part], fractions: Sequence[float]) -> Parts:
    """Cut whole files, one after the other, into splits by fractions; a cut part continues in the next one."""
    ranges = [part.bounds() for part in parts]
    size = sum(stop - start for start, stop in ranges)
    end = 0
    share = 0.0
    splits: Parts = {}
    for split, fraction in zip(SPLITS, fractions, strict=True):
        begin = end
        share += fraction
        end = size if split == SPLITS[-1] else int(share * size)
        splits[split] = []
        at = 0  # where the part begins in the joined files
        for part, (start, stop) in zip(
            parts,
            ranges,
            strict=True,
        ):
            first = max(begin, at)
            last = min(end, at + stop - start)
            if first < last:
                cut = replace(
                    part,
                    start=start + first - at,
                    stop=start + last - at,
                )
                splits[split].append(cut)
            at += stop - start
    return splits


@contextmanager
def unpacked(path: Path) -> Iterator[Any]:
    """Yield an open binary file; the suffixes of `UNPACK` are unpacked while it is read.

    Raises:
        UserError: it cannot be read.
    """
    unpack = UNPACK.get(path.suffix.lower(), open)
    try:
        with unpack(path, "rb") as file:
            yield file
    except (OSError, lzma.LZMAError, zlib.error, EOFError, ImportError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason})") from error


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file, memory-mapped; a compressed file is unpacked into a temporary one."""
    with unpacked(path) as content, tempfile.TemporaryFile() as scratch:
        file = content
        if path.suffix.lower() in UNPACK:
            shutil.copyfileobj(content, scratch, CHUNK_BYTES)
            scratch.flush()
            file = scratch
        size = file.seek(0, os.SEEK_END)
        yield (
            mmap.mmap(
                file.fileno(),
                size,
                access=mmap.ACCESS_READ,
            )
            if size
            else b""
        )


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked.

    Raises:
        UserError: it cannot be read.
    """
    with unpacked(path) as file:
        return bytes(file.read(HEAD_BYTES))


def read(parts: Iterable[Part], unit: Alignment = "byte") -> Iterator[bytes]:
    """Yield the bytes of all parts in order, in chunks that end with whole units.

    Raises:
        UserError: a file cannot be read.
    """
    for part in parts:
        with mapped(part.path) as text:
            start = _cut(text, part.start, part.alignment)
            stop = _cut(text, part.stop, part.alignment)
            while start < stop:
                end = min(
                    stop,
                    _cut(
                        text,
                        start + CHUNK_BYTES,
                        unit,
                    ),
                )
                yield text[start:end]
                start = end


def place_of_bad_byte(parts: Iterable[Part]) -> str:
    """Return the file and the place of the first byte that is not UTF-8."""
    for part in parts:
        with mapped(part.path) as text:
            content = bytes(text)
        try:
            content.decode()
        except UnicodeDecodeError as error:
            return f"{part.path}, byte {error.start:,} is 0x{content[error.start]:02x}"
    return "a character is cut"


def _cut(text: mmap.mmap | bytes, position: int | float | None, alignment: Alignment) -> int:
    """Return the byte position of a cut, moved forward to the start of a character or line."""
    size = len(text)
    if position is None:
        return size
    start = int(position * size) if isinstance(position, float) else min(position, size)
    if alignment == "line" and start > len(BOM):
        return text.find(b"\n", start - 1) + 1 or size
    while alignment == "char" and start < size and text[start] & 0xC0 == 0x80:
        start += 1
    return start
