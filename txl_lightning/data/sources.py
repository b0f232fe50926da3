"""Text before it is encoded: file parts by split, read in chunks; the registry of corpora."""

from __future__ import annotations

import bz2
import codecs
import gzip
import inspect
import io
import lzma
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from txl_lightning.config.schemas import SCHEMAS, DataConfig
from txl_lightning.data import vocabulary
from txl_lightning.data.cache import Description, cached, checksum_once, mapped
from txl_lightning.data.subwords import Positions
from txl_lightning.data.vocabulary import Level, Vocabulary
from txl_lightning.errors import UserError, require
from txl_lightning.registry import Guests

SPLITS = ("train", "valid", "test")
FRACTIONS = (0.9, 0.05, 0.05)
WHOLE = "whole"  # the only split of a text that is not cut
CHUNK = 1 << 18  # bytes or ids that are read at once
HEAD_BYTES = 1 << 16
BOM = codecs.BOM_UTF8

Alignment = Literal["byte", "char", "line"]
ALIGNMENT: dict[str, Alignment] = {
    "byte": "byte",
    "char": "char",
    "word": "line",
    "bpe": "char",
    "ids": "byte",
}
STARTS_OF_UNITS = {
    "char": re.compile(rb"(?![\x80-\xbf])"),
    "line": re.compile(rb"\A|(?<=\n)|(?<=\A\xef\xbb\xbf)|\Z"),
}
TEXT = "text.uint8"  # a text's file name in a cache folder
MakeVocabulary = Callable[..., Vocabulary]  # from byte chunks


def _open_zstd(path: Path, mode: str) -> Any:
    import pyarrow  # comes with `datasets`; few need it

    return io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd"))


UNPACK: dict[str, Callable[[Path, Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}

UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
    EOFError,
    ImportError,
    lzma.LZMAError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive part of one file: text as an array with its bytes, or ids.

    Args:
        path: file path.
        start: first byte, or id; a float is a fraction of the file.
        stop: byte or id after the last; a float is a fraction of the file, None is its end.
        alignment: unit that is never cut; a cut moves forward to the next UTF-8 character or line.
        format: `plain` text, or the ids' type.
        offset: bytes before the first id.
        starts: positions in this file where documents begin, if it says so.
        origin: the user's file, if this one is a copy that was unpacked.
    """

    path: Path
    start: int | float = 0
    stop: int | float | None = None
    alignment: Alignment = "byte"
    format: str = "plain"
    offset: int = 0
    starts: Any = ()
    origin: Path | None = None

    def open(self) -> tuple[np.ndarray, Positions]:
        """Return the bytes or ids, memory-mapped, and the positions in them where further documents begin.

        Raises:
            OSError: the file cannot be read.
        """
        dtype = "uint8" if self.format == "plain" else self.format
        whole = mapped(self.path, dtype, self.offset)
        start = self._place(whole, self.start)
        stop = self._place(
            whole,
            len(whole) if self.stop is None else self.stop,
        )
        starts = np.asarray(self.starts, np.int64)
        return whole[start:stop], starts[(starts > start) & (starts < stop)] - start

    @property
    def is_plain_text(self) -> bool:
        """True for a whole text that is one document without an encoding mark."""
        return self.format == "plain" and self.start == 0 and len(self.starts) == 0

    def _place(self, whole: np.ndarray, position: int | float) -> int:
        if isinstance(position, float):
            position = int(position * len(whole))
        return end_of_unit(whole, position, self.alignment)


Parts = dict[str, list[Part]]  # by split


@dataclass(frozen=True)
class Source:
    """A corpus's text before it is encoded.

    Args:
        name: as reports show it.
        parts: bytes of every split.
        vocabulary: makes the vocabulary from the bytes of the training split.
        published: entries of the `vocabulary` and tokens of splits that a correct preparation has.
        cutoffs: usual cut-offs of the adaptive softmax.
        checksum: checksum of the corpus, if the text of this name is known; another text is reported.
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    published: Mapping[str, int] = field(default_factory=dict)
    cutoffs: tuple[int, ...] = ()
    checksum: str | None = None


CORPORA: Guests[Callable[[Any], Source]] = Guests("data", "txl_lightning.data.corpus")
LEVELS_OF: dict[str, tuple[str, ...]] = {}  # levels that every corpus has
S = TypeVar("S", bound=Callable[[Any], Source])


def register_corpus(
    name: str, level: Level, *others: Level, options: type[DataConfig] = DataConfig
) -> Callable[[S], S]:
    """Return a decorator that registers a function from the group `data` to a `Source`: `txl train data=NAME`.

    Args:
        name: the corpus's name.
        level: usual level at which it is read.
        others: further levels.
        options: dataclass with its options, if it has any.

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
        SCHEMAS[f"data/{name}_schema"] = options
        return source

    return register


def open_vocabulary(config: DataConfig) -> MakeVocabulary:
    """Return what makes the vocabulary for a text without a published one.

    Symbols rarer than `data.min_count`, by default words that occur once, become `<unk>`, so `<unk>` is trained. At
    levels bpe and ids another vocabulary is used.

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
    """Return the file with the text `text(*arguments)`, generated once for these arguments.

    Raises:
        UserError: the text cannot be stored.
    """
    # Each change to the code may change the text.
    code = Path(inspect.getfile(text)).read_text(encoding="utf-8")

    def write(folder: Path) -> Description:
        (folder / TEXT).write_text(text(*arguments), "utf-8")
        return {}

    inputs = (code, text.__qualname__, arguments)
    return cached(config.cache_dir, inputs, write).folder / TEXT


def cut_file(path: Path) -> Parts:
    """Cut a text file into consecutive splits with 90 %, 5 % and 5 %."""
    return cut_text(Part(path))


def cut_text(text: Part, fractions: Sequence[float] = FRACTIONS) -> Parts:
    """Cut a whole text into consecutive splits by fractions with sum 1."""
    first = float(fractions[0])
    second = first + fractions[1]
    return {
        "train": [replace(text, stop=first)],
        "valid": [replace(text, start=first, stop=second)],
        "test": [replace(text, start=second)],
    }


def cut_parts(parts: Sequence[Part], fractions: Sequence[float]) -> Parts:
    """Cut whole files, one after the other, into splits by fractions; a cut part continues in the next one."""
    lengths = [len(part.open()[0]) for part in parts]
    size = sum(lengths)
    bounds = [
        int(share * size)
        for share in accumulate(
            fractions,
            initial=0.0,
        )
    ]
    bounds[-1] = size
    splits: Parts = {split: [] for split in SPLITS}
    for split, first, last in zip(SPLITS, bounds, bounds[1:], strict=False):
        for part, length in zip(parts, lengths, strict=True):
            start = max(first, 0)
            stop = min(last, length)
            if start < stop:
                end = part.stop if stop == length else part.start + stop
                splits[split].append(
                    replace(
                        part,
                        start=part.start + start,
                        stop=end,
                    )
                )
            first -= length
            last -= length
    return splits


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in the errors that libraries raise for a damaged one.

    Raises:
        UserError: it cannot be read.
    """
    try:
        yield
    except UserError:
        raise
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: cannot be read ({' '.join(reason.split())[:200]})") from error


@contextmanager
def unpacked(path: Path) -> Iterator[Any]:
    """Yield an open binary file; suffixes in `UNPACK` are unpacked while it is read.

    Raises:
        UserError: it cannot be read.
    """
    unpack = UNPACK.get(path.suffix.lower(), open)
    with reading(path), unpack(path, "rb") as file:
        yield file


def first_bytes(path: Path) -> bytes:
    """Return a file's first bytes, unpacked.

    Raises:
        UserError: it cannot be read.
    """
    with unpacked(path) as file:
        return bytes(file.read(HEAD_BYTES))


def text_file(path: Path, config: DataConfig) -> Part:
    """Return a file's text; a compressed one is unpacked once into `data.cache_dir`.

    Raises:
        UserError: it cannot be read.
    """
    alignment = ALIGNMENT[config.level]
    if path.suffix.lower() not in UNPACK:
        return Part(path, alignment=alignment)

    def write(folder: Path) -> Description:
        with unpacked(path) as file, (folder / TEXT).open("wb") as stored:
            shutil.copyfileobj(file, stored)
        return {}

    inputs = (checksum_once(config.cache_dir, path), path.suffix)
    folder = cached(config.cache_dir, inputs, write).folder
    return Part(folder / TEXT, alignment=alignment, origin=path)


def end_of_unit(content: np.ndarray, position: int, unit: Alignment) -> int:
    """Return a position in a text, moved forward to a character's or line's start, or the text's end."""
    position = min(position, len(content))
    if unit == "byte":
        return position
    match = STARTS_OF_UNITS[unit].search(content, position)  # type: ignore[call-overload]
    return int(match.start())


def chunks(content: np.ndarray, unit: Alignment = "byte") -> Iterator[np.ndarray]:
    """Yield an array in pieces that fit into memory and end with whole units."""
    start = 0
    while start < len(content):
        stop = end_of_unit(content, start + CHUNK, unit)
        yield content[start:stop]
        start = stop


def read(parts: Iterable[Part], unit: Alignment = "byte") -> Iterator[bytes]:
    """Yield all parts' bytes in order, in chunks that end with whole units.

    Raises:
        UserError: a file cannot be read.
    """
    for part in parts:
        content, _ = part.open()
        for chunk in chunks(content, unit):
            yield chunk.tobytes()


def place_of_bad_byte(parts: Parts) -> str:
    """Return the file and where its first byte that is not UTF-8 stands."""
    for part in chain.from_iterable(parts.values()):
        content = part.path.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError as error:
            byte = content[error.start]
            return f"{part.origin or part.path}, byte {error.start:,} is 0x{byte:02x}"
    return "a character is cut"
