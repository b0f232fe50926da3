"""Files of the user: which of them are splits, and their texts, records or token ids."""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import struct
import tarfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import BOM, ID_COLUMNS, RAW_IDS, TEXT_COLUMNS, Columns, Format, format_of, suffix
from txl_lightning.data.names import names_of_ids
from txl_lightning.data.sources import (
    ALIGNMENT,
    SPLITS,
    WHOLE,
    Part,
    Source,
    cache_key,
    cached,
    checksum_once,
    cut_file,
    cut_parts,
    first_bytes,
    is_packed,
    mapped,
    open_vocabulary,
    register_corpus,
)
from txl_lightning.data.vocabulary import LEVELS, Vocabulary
from txl_lightning.errors import OptionError, UserError, notice, require, require_memory
from txl_lightning.files import expand, not_special

SPLIT_NAMES = {
    "train": r"trn|train(?:ing|set|data)?",
    "valid": r"val|valid(?:ation|set)?|dev(?:el|elopment|set)?|eval(?:uation)?|held-?out",
    "test": r"tst|test(?:ing|set|data)?",
}
SPLIT = re.compile(
    "|".join(rf"(?P<{split}>(?<![a-z])(?:{word})(?![a-z]))" for split, word in SPLIT_NAMES.items()), re.IGNORECASE
)
WORD_IN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])")
SHORT_NAMES = {"tr": "train", "va": "valid", "te": "test"}  # also of languages: all three or none
HINT = "name the splits: 'data.path={train:PATH,valid:PATH,test:PATH}', without valid and test they are cut from train"
# Files beside the data that describe it.
DESCRIPTIONS = re.compile(
    r"(dataset_infos?|dataset_dict|state|index)\.json|.*\.(idx|index|metadata)|_(common_)?metadata|_SUCCESS"
    r"|cache-\w+\.arrow|.*(document|sample|shuffle)_index\.npy"
)
ABOUT = re.compile(r"(readme|licen[cs]e|citation|changelog)\b.*|.*\.md", re.IGNORECASE)
RAW_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
RAW_SUFFIXES = ("", ".bin", ".npy", ".ds", ".raw", ".dat", ".u16", ".u32")
TEXT_OF_IDS = b"0123456789 \t\r\n,;[]-"  # of which numbers in JSON or a text consist
# Errors that libraries raise for a damaged file.
UNREADABLE: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError)
UNREADABLE += (RecursionError, struct.error, tarfile.TarError, csv.Error)
IDS_AT_ONCE = 1 << 22
BYTES_OF_ID = 500  # at least: its name, its row of the embedding with gradient and moments
FEW_IDS = 1 << 16  # a vocabulary of this size needs no further ids
FEW_DISTINCT = 20  # times as many ids as occur
MOST_COUNTED = 1 << 24  # ids that are counted one by one


@dataclass(frozen=True)
class Found:
    """File that can be read at the level: its format, and of a table the column."""

    path: Path
    row: Format
    column: str = ""


Files = dict[str, list[Found]]  # by split, or under "" if they are joined and cut


@register_corpus("file", *LEVELS, "ids", options=FileData)
def file(config: FileData, whole: bool = False) -> Source:
    """Files of the user: text, or token ids at level ids.

    `data.path` is a file, a folder, a list of both, or a mapping of splits to these. Files whose names say train, valid
    (val, dev, …) or test are these splits (see `_by_name`). A split that is missing is cut from the end of train; other
    files are joined in the order of their paths and cut by `data.fractions`. A cut is never inside a character or, for
    words, a line.

    What a file holds is known by its contents (`formats.FORMATS`). Every file is a document, and every record of a
    table, of which `data.column` is read. A document that a cut goes through continues as the first one of the next
    split. Nothing is put between documents, but a line break at the end of a record of text. In a vocabulary with
    `<S>`, that of a model of lm1b, every line is a sentence as in lm1b.

    Args:
        config: group `data`.
        whole: all files are one split, `WHOLE`.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions, ids = list(config.fractions), config.level == "ids"
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    name, files = _files(config.path, config, not whole)
    kinds: dict[str, None] = {}
    parts = {split: [*filter(None, (_part(one, config, kinds) for one in found))] for split, found in files.items()}
    for split, found in parts.items():
        of_split = f" in {_few(one.path for one in files[split])}" if split else ""
        require(bool(found), "data.path", config.path, f"must have {'ids' if ids else 'text'}: it is empty{of_split}")
    if whole:
        parts = {WHOLE: [part for of_split in parts.values() for part in of_split]}
    elif missing := [split for split in SPLITS if split not in files]:
        joined = parts.pop("", None) or parts["train"]
        first = joined[0]
        if len(missing) == 3 and not (ids or joined[1:] or first.start or len(first.starts)):
            cut = cut_file(first.path, fractions, first.alignment)
        else:
            shares = np.array([n * (split in (*missing, "train")) for split, n in zip(SPLITS, fractions, strict=True)])
            cut = cut_parts(joined, (shares / shares.sum()).tolist())
        parts = {split: cut[split] if split in (*missing, "train") else parts[split] for split in SPLITS}
        if len({part.path for part in joined}) > 1 or "" not in files:
            sizes = ", ".join(f"{split} {sum(part.size for part in parts[split]):,}" for split in SPLITS)
            verb = "joined and cut" if "" in files else f"{' and '.join(missing)} cut from the end of train"
            notice(f"data.path={name}: {verb}, {'ids' if ids else 'bytes'} of each split: {sizes}")
    parts = {split: parts[split] for split in (WHOLE, *SPLITS) if split in parts}
    if kinds:
        n_documents = {split: sum(1 + len(part.inner_starts()) for part in parts[split]) for split in parts}
        counts = ", ".join(f"{split} {n:,}" for split, n in n_documents.items())
        notice(f"data.path={name}: {' and '.join(kinds)}; documents of each split: {counts}")
    return Source(name, parts, open_vocabulary(config), subwords=2048)


def _files(given: Any, config: FileData, splits: bool = True) -> tuple[str, Files]:
    """Return a name for the files of `data.path`, and those that are not empty, by split, or joined if `splits` is off.

    Three paths at level ids are train, valid and test. The common beginning of a `.bin` and its `.idx` names both.
    """
    ids = config.level == "ids"
    allowed = "must be a file, a folder, a list of these or a mapping of train, valid and test to them (data.path=PATH)"
    if ids and isinstance(given, list) and len(given) == 3:
        given = dict(zip(SPLITS, given, strict=True))
    if isinstance(given, Mapping):
        require("train" in given and set(given) <= set(SPLITS), "data.path", dict(given), allowed)
        named = {split: _files(path, config, splits=False) for split, path in given.items()}
        return named["train"][0], {split: files[""] for split, (_, files) in named.items()}
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    require(bool(listed) and all(isinstance(path, str) and path for path in listed), "data.path", given, allowed)
    try:
        roots = [_with_suffix(not_special(path)) for path in listed]
        found = {one.path: one for root in roots for one in _found_in(root, config)}
    except OSError as error:
        which = f"{error.filename} " if str(error.filename) != given else ""
        raise OptionError("data.path", given, f"{which}cannot be read ({error.strerror})") from error
    require(bool(found), "data.path", given, "must not be empty")
    name, files = roots[0].name or roots[0].resolve().name, [found[path] for path in sorted(found)]
    name += f" and {len(files) - 1} more" if len(roots) > 1 and len(files) > 1 else ""
    if len(files) == 1 or not splits:
        return name, {"": files}
    base = roots[0] if len(roots) == 1 else Path(os.path.commonpath([root.absolute().parent for root in roots]))
    return name, _by_name(files, base.absolute(), given, len(roots) == 1)


def _with_suffix(path: Path) -> Path:
    """Return the `.bin` of a path that names a `.bin` and its `.idx`, by what both begin with or by the `.idx`."""
    named = path if path.suffix == ".idx" else Path(f"{path}.idx")
    return named.with_suffix(".bin") if named.is_file() and named.with_suffix(".bin").is_file() else path


def _split_of(name: str) -> str:
    """Return the split that a path says; nothing if it says none or several.

    A folder whose whole name is a split counts first, then the name of the file, then the other folders.
    """
    *folders, file = Path(name).parts
    folders.reverse()
    for part in (*filter(SPLIT.fullmatch, folders), file, *folders):
        if says := {match.lastgroup for match in SPLIT.finditer(WORD_IN_NAME.sub("-", part))}:
            return str(says.pop()) if len(says) == 1 else ""
    return ""


def _by_name(files: list[Found], base: Path, given: Any, is_folder: bool) -> Files:
    """Return files by the splits that their names below a folder say, or all joined under "" if they say none.

    Files are splits if one is train and another valid or test. Of a folder, the files that are no split are left out if
    they are smaller in all: a README beside the data. If they are larger, as in a folder of code, all are joined.

    Raises:
        OptionError: some files of a list are splits and others are not.
    """
    names = {one.path: one.path.absolute().relative_to(base).as_posix() for one in files}
    short = {SHORT_NAMES.get(one.path.stem): [one] for one in files}
    if {*SPLITS} <= {*short}:
        return {split: short[split] for split in SPLITS}
    found: Files = {}
    for one in files:
        found.setdefault(_split_of(names[one.path]), []).append(one)
    others = [one.path for one in found.pop("", [])]
    larger = _size(others) > _size(names) / 2
    if not {"valid", "test"} & {*found} or (is_folder and (larger or "train" not in found)):
        return {"": files}
    mixed = f"has files that are splits and {others[0].name}, which is none; {HINT}" if others else HINT
    require(is_folder or ("train" in found and not others), "data.path", given, mixed)
    if others:
        notice(f"data.path={given}: the names of {_few(others)} say no split; left out")
    # Names with `*` in place of the words for splits, and without numbers: equal in one data set.
    plain = {path: re.sub(r"\d+", "", SPLIT.sub("*", WORD_IN_NAME.sub("-", name))) for path, name in names.items()}
    sets = [{plain[one.path].lower() for one in of_split} for of_split in found.values()]
    if is_folder and len(several := set.union(*sets)) > 1 and any(len(of_split) > 1 for of_split in sets):
        notice(f"data.path={given}: {len(several)} sets of files are joined: {', '.join(sorted(several)[:5])}")
    return found


def _few(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if names[3:] else "")


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _found_in(root: Path, config: FileData) -> list[Found]:
    """Return a file, or those of a folder and its folders that can be read, all plain texts or all tables.

    The others are named. Names that begin with a dot and `__pycache__` are not entered; of `save_to_disk` only the
    files that it lists are.

    Raises:
        OptionError: most of what it has cannot be read.
        OSError: a folder or file cannot be read.
    """
    if not root.is_dir():
        return [*filter(None, [_found(root, config)])]

    def fail(error: OSError) -> None:
        raise error

    files, places = list[Path](), set[str]()
    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        require((place := os.path.realpath(folder)) not in places, "data.path", root, f"has {folder} twice, by a link")
        places.add(place)
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        if {"state.json", "dataset_info.json"} <= {*names}:
            names = [file["filename"] for file in json.loads(Path(folder, "state.json").read_bytes())["_data_files"]]
        files += [Path(folder, name) for name in names if not name.startswith(".") and not DESCRIPTIONS.fullmatch(name)]
    files = sorted(path for path in files if path.is_file() or not path.exists())  # a missing one is an error
    one_of = {path.resolve(): path for path in files}
    twice = [f"{path} and {one_of[path.resolve()]}" for path in files if one_of[path.resolve()] != path]
    require(not twice, "data.path", root, f"has a link to a file that it has too: {', '.join(twice[:1])}")
    why: dict[Path, str] = {}
    found: dict[bool, list[Found]] = {False: [], True: []}  # whether it is a table
    for path in files:
        try:
            if one := _found(path, config, named=False):
                found[bool(one.column)].append(one)
        except OptionError as error:
            why[path] = error.allowed if error.option == "data.path" else f"({error.option}) {error.allowed}"
    if found[True] and (about := [one for one in found[False] if ABOUT.fullmatch(one.path.name)]):
        found[False] = [one for one in found[False] if one not in about]
        notice(f"data.path={root}: {_few(one.path for one in about)}: left out, beside tables")
    kept, other = sorted(found.values(), key=lambda files: -_size(one.path for one in files))
    why |= dict.fromkeys((one.path for one in other), "is not of the same kind")
    if why:
        worst = max(why, key=lambda path: path.stat().st_size)
        most = _size(why) <= _size(one.path for one in kept)
        require(most, "data.path", root, f"has more that cannot be read than text or ids: {worst.name} {why[worst]}")
        notice(f"data.path={root}: {_few(why)}: left out; {worst.name} {why[worst]}")
    return kept


def _found(path: Path, config: FileData, named: bool = True) -> Found | None:
    """Return what a file is, by its first bytes; None if it is empty.

    Args:
        path: a file.
        config: group `data`.
        named: the file was named, not found in a folder.

    Raises:
        OptionError: nothing of the level can be read from it.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        if not file.read(1):
            return None
    row, ids = format_of(path), config.level == "ids"
    if row.records is not None:
        with _naming(path), mapped(path) as content:
            columns, _ = row.records(path, content)
        require(bool(columns), "data.path", path, f"must have records of {row.name}: it is empty")
        return Found(path, row, _column(path, columns, config))
    of_table = f"must be null for {path}: it is {row.name}, no table"
    require(config.column is None, "data.column", config.column, of_table)
    require(not row.hint, "data.path", path, f"must be {'ids' if ids else 'a text'}, not {row.name}: {row.hint}")
    if ids:
        require(not is_packed(path), "data.path", path, "must be ids that can be mapped, not compressed: unpack it")
        held = row.name if first_bytes(path).translate(None, TEXT_OF_IDS) else "digits of a text"
        raw = held in RAW_IDS or (held == "text" and config.dtype in (None, "uint8"))
        raw = row.ids is not None or (raw and path.suffix.lower() in RAW_SUFFIXES)
        require(raw, "data.path", path, f"must be ids, not {held}: save them with numpy.save")
        types = f"must be {', '.join(RAW_DTYPES)} for {path.name}: a raw file does not state the type of its ids"
        require(row.ids is not None or config.dtype in RAW_DTYPES, "data.dtype", config.dtype, types)
        return Found(path, row)
    require(row.ids is None, "data.level", config.level, f"must be ids for {path}: it holds {row.name}")
    json_text = suffix(path) in (".jsonl", ".ndjson", *[".json"] * named) and config.level != "byte"
    of_json = "must be JSON lines or a list of records: name it .txt to read it as text"
    require(not json_text, "data.path", path, of_json)
    readable = row.name == "text" or (config.level == "byte" and named)
    others = "data.level=byte reads any bytes, data.level=ids token ids"
    require(readable, "data.path", path, f"must be a text, not {row.name}; {others}")
    return Found(path, row)


def _column(path: Path, columns: Columns, config: FileData) -> str:
    """Return the column to read: `data.column`, or the usual one.

    Raises:
        OptionError: it is not there.
    """
    ids = config.level == "ids"
    usual, others = (ID_COLUMNS, TEXT_COLUMNS) if ids else (TEXT_COLUMNS, ID_COLUMNS)
    column = config.column or next((name for name in usual if name in columns), None)
    other = next((name for name in others if name in columns and column is None), None)
    hint = f" (data.level={'bpe' if ids else 'ids'} reads {other})" if other else ""
    allowed = f"must be a column of {path}: {', '.join(map(str, columns))}{hint}"
    require(column in columns, "data.column", config.column, allowed)
    return str(column)


def _part(found: Found, config: FileData, kinds: dict[str, None]) -> Part | None:
    """Return the text or ids of a file, None if it has none, and note its kind.

    Raises:
        OptionError: it cannot be read as what its format says.
    """
    path, row, column, ids = found.path, found.row, found.column, config.level == "ids"
    if column:
        kinds[f"{row.name}, column {column}"] = None
        directory, held = expand(config.cache_dir), "ids.int32" if ids else "text.uint8"
        code = Path(inspect.getfile(row.records)).read_bytes() if row.records else b""  # a guest's may change
        key = cache_key(checksum_once(directory, path), "records", row.name, code, suffix(path), column, ids)
        arrays, description = cached(directory, key, partial(_store, found, held))
        if not len(arrays[Path(held).stem]):
            notice(f"{path}: none of its records has {column}; left out")
            return None
        if description["left_out"]:
            notice(f"{path}: {description['left_out']:,} records have no {column}; left out")
        way: dict[str, Any] = {"format": "int32"} if ids else {"alignment": ALIGNMENT[config.level]}
        return Part(directory / key / held, starts=arrays["starts"], **way)
    if not ids:
        if row.name != "text":
            notice(f"data.path={path}: not a text; its bytes are read as they are")
        return Part(path, len(BOM) * first_bytes(path).startswith(BOM), alignment=ALIGNMENT[config.level])
    with _naming(path):
        part = Part(path, format=str(config.dtype)) if row.ids is None else row.ids(path)
        if row.ids is not None and not row.name.startswith("an array"):
            kinds[f"{row.name}, {part.format}"] = None
        return part if part.size else None


@contextmanager
def _naming(path: Path, place: Callable[[], str] = str) -> Iterator[None]:
    """Name the file, and the place in it, in the error of a library that reads it."""
    try:
        yield
    except UserError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise OptionError("data.path", path, f"{place()}cannot be read ({type(error).__name__}: {reason})") from error


def _store(found: Found, held: str, folder: Path) -> dict[str, Any]:
    """Write the texts of records as UTF-8, or their ids, and where each begins; count records that are null.

    Raises:
        OptionError: a record has something else.
    """
    starts, left_out, at, number, ids = array("q"), 0, 0, 0, held.startswith("ids")
    naming_record = _naming(found.path, lambda: f"record {number + 1} ")
    with naming_record, mapped(found.path) as content, (folder / held).open("wb") as file:
        for value in found.row.records(found.path, content)[1](found.column):  # type: ignore[misc]
            # Several sequences of ids if its members are lists: tracks, as MidiTok writes.
            tracks = ids and isinstance(value, list) and value and isinstance(value[0], list)
            for one in value if tracks else [value]:
                if one is None:
                    left_out += 1
                else:
                    starts.append(at)
                    at += file.write(_encoded(one, ids)) // (4 if ids else 1)
            number += 1
    np.array(starts, np.int64).tofile(folder / "starts.int64")
    return {"left_out": left_out}


def _encoded(value: Any, ids: bool) -> bytes:
    if ids:
        found = np.asarray(value)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise TypeError(f"must be a list of ids, not {str(value)[:40]}")
        if found.size and not 0 <= found.min() <= found.max() < 2**31:
            raise TypeError(f"must be ids from 0 to 2^31 - 1, not {found.min()} to {found.max()}")
        return found.astype(np.int32).tobytes()
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"must be a text, not {str(value)[:40]}")
    return f"{text.removesuffix(chr(10))}\n".encode()


def chunks_of_ids(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array in pieces that fit into memory."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def vocabulary_of_ids(config: FileData, source: Source, checksum: str, given: Vocabulary | None) -> Vocabulary:
    """Return the given vocabulary, or one of `data.vocab_size` ids, else of `data.names`, else up to the largest id.

    An id without a name is shown as its number. The range of the ids is cached.

    Raises:
        OptionError: an id is negative or too large, `data.names` cannot be read, or `data.vocab_size` is not possible.
    """

    def chunks() -> Iterator[np.ndarray]:
        return (ids for parts in source.parts.values() for part in parts for ids in chunks_of_ids(part.ids()))

    def measure(_: Path) -> dict[str, int]:
        lengths, lowest, highest = zip(*((len(ids), int(ids.min()), int(ids.max())) for ids in chunks()), strict=True)
        n_counted = max(highest) + 1 if min(lowest) >= 0 and max(highest) < MOST_COUNTED else 0
        counts_V = np.zeros(n_counted, np.int64)
        for ids in chunks() if n_counted else ():
            counts_V += np.bincount(ids, minlength=n_counted)
        found = {"number": sum(lengths), "smallest": min(lowest), "largest": max(highest)}
        return {**found, "zeros": int(counts_V[:1].sum()), "distinct": int(np.count_nonzero(counts_V))}

    _, found = cached(expand(config.cache_dir), cache_key(checksum, "range of ids"), measure)
    n_ids, smallest, largest, zeros, distinct = found.values()
    path, size = config.path, config.vocab_size
    require(smallest >= 0, "data.path", path, f"has the negative id {smallest}")
    if given is None:
        allowed = f"must be given: the largest of {n_ids} ids is {largest}. Is the type of the ids right?"
        plausible = size is not None or largest < max(n_ids, FEW_IDS)  # such ids may be halves or pairs of others
        require(plausible, "data.vocab_size", None, allowed)
        if 2 * zeros >= n_ids > zeros:
            notice(f"data.path={path}: {zeros:,} of {n_ids:,} ids are 0; is the type of the ids right?")
        if 0 < FEW_DISTINCT * distinct < largest and size is None:
            of = f"{distinct:,} ids occur, and the largest is {largest:,}"
            notice(f"data.path={path}: {of}; is the type of the ids right?")
        names = {} if config.names is None else names_of_ids(config.names)
        least, named = 1 + max(names, default=0), f", for all names of {config.names}," if names else ""
        size = size if size is not None else least if names else largest + 1
        require(least <= size < 2**31, "data.vocab_size", size, f"must be an integer >= {least}{named} and below 2^31")
        require_memory(BYTES_OF_ID * size, "data.vocab_size", size)
        given = Vocabulary("ids", tuple(names.get(number, str(number)) for number in range(size)))
    allowed = f"has the id {largest}, the vocabulary (data.vocab_size) only ids from 0 to {len(given) - 1}"
    require(largest < len(given), "data.path", path, allowed)
    return given
