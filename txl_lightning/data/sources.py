"""Text before it is encoded: parts of files by split, read in chunks, and folders that are prepared once."""

from __future__ import annotations

import bz2
import codecs
import fcntl
import gzip
import hashlib
import inspect
import json
import lzma
import mmap
import os
import shutil
import sys
import sysconfig
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from txl_lightning.config.schemas import OWN_OPTIONS, DataConfig
from txl_lightning.data import vocabulary
from txl_lightning.data.vocabulary import LEVELS, Level, Vocabulary
from txl_lightning.errors import UserError, notice, require
from txl_lightning.files import PART, expand, file_checksum, new_folder, sync_folder, write_json
from txl_lightning.registry import Guests

SPLITS = ("train", "valid", "test")
FRACTIONS = (0.9, 0.05, 0.05)
WHOLE = "whole"  # the only split of a text that is not cut
CHUNK_BYTES = 1 << 22
SECONDS_TO_LOCK = 60  # at most, between making a folder and locking it
HEAD_BYTES = 1 << 16  # that tell the kind of a file
LARGE_FILE_BYTES = 1 << 24  # from this size on the checksum of a file is kept
PREPARATION_VERSION, DESCRIPTION = 10, "description.json"
PACKAGES = {"sympy": "1.14.0", "networkx": "3.6.1"}  # as in `constraints.txt`; torch needs both
PACKAGES_CHECKSUM = "9cf24e9700e0a49d0fd0ec4c3e620ab30311cf772b9846100a968ff394086b9f"
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

Alignment = Literal["byte", "char", "line"]
ALIGNMENT: dict[str, Alignment] = {"byte": "byte", "char": "char", "word": "line", "bpe": "char"}
MakeVocabulary = Callable[..., Vocabulary]  # of chunks of bytes
Description = dict[str, Any]  # of a preparation


def _open_zstd(file: Any) -> Any:
    import pyarrow  # comes with `datasets`; few need it

    return pyarrow.CompressedInputStream(file, "zstd")


# First bytes of compressed files, and what unpacks them.
COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b\x08": gzip.open,
    **{b"BZh%d1AY&SY" % level: bz2.open for level in range(1, 10)},
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
    **{bytes([first]) + b"\x2a\x4d\x18": _open_zstd for first in range(0x50, 0x60)},  # a frame to skip, as of pzstd
}


@dataclass(frozen=True)
class Part:
    """Consecutive part of one file.

    Args:
        path: path of the file; a compressed file is unpacked while it is read.
        start: first byte, or id; a float is a fraction of the file.
        stop: byte or id after the last; a float is a fraction of the file, None is the end of the file.
        alignment: unit that is never cut; a cut moves forward to the next UTF-8 character or line. A line without a
            line break at the end of the file gets one.
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
        ids = np.memmap(self.path, self.format, mode="r", offset=self.offset)
        return ids[self.start : self.stop]

    def inner_starts(self) -> NDArray[np.int64]:
        """Return the positions in the part where its further documents begin, ascending; without the first one."""
        if not len(self.starts):
            return self.starts
        starts, (start, stop) = np.unique(self.starts), self.bounds()
        return starts[(starts > start) & (starts < stop)] - start

    def bounds(self) -> tuple[int, int]:
        """Return the first byte or id of the part, and the one after the last, where cuts have moved forward."""
        if self.format != "plain":
            return int(self.start), int(self.start) + len(self.ids())
        with mapped(self.path) as text:
            return _cut(text, self.start, self.alignment), _cut(text, self.stop, self.alignment)

    @property
    def size(self) -> int:
        """Number of bytes or ids."""
        start, stop = self.bounds()
        return stop - start


Parts = dict[str, list[Part]]  # by split


@dataclass(frozen=True)
class Source:
    """Text of a corpus before it is encoded.

    Args:
        name: as reports show it.
        parts: bytes of every split.
        vocabulary: makes the vocabulary from the bytes of the training split, or of `listed`.
        listed: file that lists the vocabulary, if there is one.
        published: entries of the `vocabulary` and tokens of splits that a correct preparation has.
        cutoffs: usual cut-offs of the adaptive softmax.
        checksum: checksum of the corpus, if the text of this name is known; another text is reported.
        subwords: tokens of the vocabulary that level bpe trains, unless `data.vocab_size` is given.
    """

    name: str
    parts: Parts
    vocabulary: MakeVocabulary
    listed: tuple[Part, ...] = ()
    published: Mapping[str, int] = field(default_factory=dict)
    cutoffs: tuple[int, ...] = ()
    checksum: str | None = None
    subwords: int = 8192


CORPORA: Guests[Callable[[Any], Source]] = Guests("data", "txl_lightning.data.corpus", "txl_lightning.data.{}")
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
        CORPORA.add(name, source, {"defaults": [f"{name}_schema", "_self_"], "level": level})
        LEVELS_OF[name], OWN_OPTIONS[name] = (level, *others), options
        return source

    return register


def open_vocabulary(config: DataConfig) -> MakeVocabulary:
    """Return what makes the vocabulary of a text that has no published one.

    Symbols rarer than `data.min_count`, by default words that occur once, are `<unk>`, which is so trained. At levels
    bpe and ids another vocabulary is used.

    Raises:
        OptionError: `data.min_count` is not possible.
    """
    default = {"word": 2, "char": 1}.get(config.level)
    if default is None:
        return vocabulary.all_bytes
    least = default if config.min_count is None else config.min_count
    require(least >= 1, "data.min_count", least, "must be an integer >= 1")
    make = vocabulary.words if config.level == "word" else vocabulary.characters_and_unknown
    return partial(make, min_count=least)


def by_split(parts: Iterable[Part]) -> Parts:
    """Assign one part to each split, in the order train, valid, test."""
    return {split: [part] for split, part in zip(SPLITS, parts, strict=True)}


def cut_file(path: Path, fractions: Sequence[float] = FRACTIONS, alignment: Alignment = "byte") -> Parts:
    """Cut a file into consecutive splits by fractions with sum 1; it is not unpacked to know its size."""
    shares = np.cumsum(fractions)[:-1].tolist()
    return by_split(Part(path, start, stop, alignment) for start, stop in pairwise([0, *shares, None]))


def cut_parts(parts: Sequence[Part], fractions: Sequence[float]) -> Parts:
    """Cut whole files, one after the other, into splits by fractions; a cut part continues in the next one."""
    ends = np.cumsum([part.size for part in parts]).tolist()
    cuts = [0, *(int(share * ends[-1]) for share in np.cumsum(fractions)[:-1].tolist()), ends[-1]]
    splits: Parts = {split: [] for split in SPLITS}
    for split, (start, stop) in zip(SPLITS, pairwise(cuts), strict=True):
        for part, first, end in zip(parts, [0, *ends], ends, strict=False):
            if max(start, first) < min(stop, end):
                last = part.start + stop - first if stop < end else part.stop
                splits[split].append(replace(part, start=part.start + max(start - first, 0), stop=last))
    return splits


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file, memory-mapped; a compressed file is unpacked into a temporary one."""
    with _opened(path) as (content, packed), tempfile.TemporaryFile() if packed else nullcontext(content) as file:
        if packed:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            file.flush()
        size = file.seek(0, os.SEEK_END)
        yield mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked, which tell its kind.

    Raises:
        UserError: it cannot be read.
    """
    with _opened(path) as (content, _):
        return content.read(HEAD_BYTES)


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed."""
    with _opened(path) as (_, packed):
        return packed


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, bool]]:
    """Yield an open file, which is unpacked while it is read, and whether it is compressed."""
    try:
        with path.open("rb") as file:
            head = file.read(max(map(len, COMPRESSIONS)))
            file.seek(0)
            unpack = next((way for first, way in COMPRESSIONS.items() if head.startswith(first)), nullcontext)
            with unpack(file) as content:
                yield content, unpack is not nullcontext
    except (OSError, lzma.LZMAError, zlib.error, EOFError, ImportError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in order, in chunks.

    Raises:
        UserError: a file cannot be read, or a part that is aligned to characters is not UTF-8.
    """
    for part in parts:
        last, decoder = b"\n", codecs.getincrementaldecoder("utf-8")()
        try:
            with mapped(part.path) as text:
                start, stop = (_cut(text, position, part.alignment) for position in (part.start, part.stop))
                for at in range(start, stop, CHUNK_BYTES):
                    last = text[at : min(at + CHUNK_BYTES, stop)]
                    if part.alignment != "byte":
                        decoder.decode(last, final=at + len(last) == stop)
                    yield last
        except UnicodeDecodeError as error:
            allowed = "convert it (iconv -f LATIN1 -t UTF-8), or read its bytes (data.level=byte)"
            raise UserError(f"{part.path}: not UTF-8 text ({error.reason}): {allowed}") from error
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


@register_corpus("python-stdlib", *LEVELS)
def python_stdlib(config: DataConfig) -> Source:
    """Source files of the running Python's standard library, without its tests (see `_python_files`)."""
    version = ".".join(map(str, sys.version_info[:3]))
    root = Path(sysconfig.get_paths()["stdlib"])
    return _python_files(f"python-stdlib {version}", {root: root}, config)


@register_corpus("python-packages", *LEVELS)
def python_packages(config: DataConfig) -> Source:
    """Source files of the installed SymPy and NetworkX, without their tests (see `_python_files`).

    The versions of `PACKAGES` are the same text on every machine.
    """
    try:
        installed = {package: metadata.distribution(package) for package in PACKAGES}  # does not import them
    except metadata.PackageNotFoundError as error:
        raise UserError(f"data={config.name}: {error.name} is not installed; use data=file data.path=…") from error
    roots = [Path(str(found.locate_file(package))) for package, found in installed.items()]
    versions = {package: found.version for package, found in installed.items()}
    known, name = (" + ".join(f"{package} {of[package]}" for package in PACKAGES) for of in (PACKAGES, versions))
    if name != known:
        notice(f"data={config.name}: this text is {name}; losses of {known} cannot be compared with it")
    checksum = PACKAGES_CHECKSUM if name == known else None
    return replace(_python_files(name, {root: root.parent for root in roots}, config), checksum=checksum, subwords=2048)


def _python_files(name: str, roots: Mapping[Path, Path], config: DataConfig) -> Source:
    """Source files in folders, without tests.

    Every file is a document. They are ordered by a hash of their names, so that the splits are similar, and never cut.
    The splits have about 90 %, 5 % and 5 % of the bytes.

    Args:
        name: name of the corpus.
        roots: for each folder the one that its files' names are relative to.
        config: group `data`.
    """
    named: dict[str, Path] = {}
    for root, base in roots.items():
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in EXCLUDED_FOLDERS]  # not entered: packages may be many
            paths = [Path(folder, name) for name in names if name.endswith(".py") and name != "conftest.py"]
            named |= {path.relative_to(base).as_posix(): path for path in paths}
    paths = [named[name] for name in sorted(named, key=lambda name: hashlib.sha256(name.encode()).digest())]
    if not paths:
        raise UserError(f"data={config.name}: there are no source files under {root}; use data=file data.path=…")
    ends = np.cumsum([path.stat().st_size for path in paths])
    cuts = [0, *np.searchsorted(ends, [0.9 * ends[-1], 0.95 * ends[-1]]).tolist(), len(paths)]
    parts = {split: [Part(p) for p in paths[a:b]] for split, (a, b) in zip(SPLITS, pairwise(cuts), strict=True)}
    return Source(name, parts, open_vocabulary(config))


def cache_key(*parts: object) -> str:
    """Return a folder name that changes with the inputs of a preparation and with `PREPARATION_VERSION`."""
    return hashlib.sha256(json.dumps([PREPARATION_VERSION, *map(str, parts)]).encode()).hexdigest()[:32]


def cached(
    directory: Path, key: str, prepare: Callable[[Path], Description]
) -> tuple[dict[str, np.ndarray], Description]:
    """Return the memory-mapped arrays and the description in `directory/key`; prepare them first if missing.

    The folder gets its name only when it is complete and on disk, so it is either whole or absent. If two processes
    prepare it at the same time, the first to finish wins and the other one uses that result. A folder that was damaged
    since then is prepared again, which is said.

    Args:
        directory: folder of all preparations.
        key: see `cache_key`.
        prepare: writes arrays into the folder that it is given, as files NAME.DTYPE, and returns the description.

    Raises:
        UserError: the folder cannot be written (permissions, full disk), or `prepare` raised it.
    """
    folder = directory / key
    if opened := _opened_cache(folder):
        return opened
    if os.path.lexists(folder):
        notice(f"data.cache_dir={directory}: {folder} is damaged; it is prepared again")
    failure = f"{folder} is damaged as soon as it is written"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{PART}*"):
            with suppress(OSError), _locked(left):
                if time.time() - left.stat().st_mtime > SECONDS_TO_LOCK:  # it was killed
                    shutil.rmtree(left)
        with new_folder(folder) as unfinished, _locked(unfinished):
            description = prepare(unfinished)
            state = {"description": description, "checksum": _checksum(unfinished, description)}
            write_json(unfinished / DESCRIPTION, state)
            for path in unfinished.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if os.path.lexists(folder) and not _opened_cache(folder):  # damaged
                shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
        sync_folder(directory)
    except OSError as error:  # another process may have been faster
        failure = f"cannot store prepared tokens: {error}"
    if opened := _opened_cache(folder):
        return opened
    raise UserError(f"data.cache_dir={directory}: {failure}")


def _opened_cache(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return arrays and description of a folder; None if it is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):  # of any JSON
        state = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if state["checksum"] == _checksum(folder, state["description"]):
            arrays = (path for path in folder.iterdir() if path.name != DESCRIPTION)
            return {path.stem: _mapped_array(path) for path in arrays}, state["description"]
    return None


def _mapped_array(path: Path) -> np.ndarray:
    dtype = path.suffix[1:]
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def _checksum(folder: Path, description: dict[str, Any]) -> str:
    """Return a checksum of the description, the sizes of all arrays and the bytes of small ones: large take long."""
    sizes = {path: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != DESCRIPTION}
    arrays = [
        (path.name, size, zlib.crc32(_mapped_array(path).data) if size < LARGE_FILE_BYTES else 0)
        for path, size in sizes.items()
    ]
    return hashlib.sha256(json.dumps([description, arrays]).encode()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, or raise `OSError` if another one holds it."""
    held = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def checksum_once(directory: Path, path: Path) -> str:
    """Return the SHA-256 of a file; that of a large one is cached in a folder, by path, size and time."""
    status = path.stat()
    if status.st_size < LARGE_FILE_BYTES:
        return file_checksum(path)
    key = cache_key("checksum", path.resolve(), status.st_size, status.st_mtime_ns)
    return str(cached(directory, key, lambda _: {"sha256": file_checksum(path)})[1]["sha256"])


def generated(config: DataConfig, text: Callable[..., str], *arguments: Any) -> Path:
    """Return the file with the text `text(*arguments)`, which is generated once for these arguments.

    Raises:
        UserError: the text cannot be stored.
    """
    code = Path(inspect.getfile(text)).read_text(encoding="utf-8")  # another text may follow from each change
    directory, key = expand(config.cache_dir), cache_key(code, text.__qualname__, *arguments)
    cached(directory, key, lambda folder: {"length": (folder / "text.uint8").write_text(text(*arguments), "utf-8")})
    return directory / key / "text.uint8"
