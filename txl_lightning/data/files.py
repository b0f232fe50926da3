"""Files of the user (`data=file`): which files are read, which of them are splits, and what they hold."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.cache import Description, cache_key, cached, checksum_once
from txl_lightning.data.formats import (
    BAD_RECORD,
    BOM,
    ID_COLUMNS,
    READERS,
    TEXT_COLUMNS,
    Column,
    check_text,
    format_of,
    refuse_format,
)
from txl_lightning.data.ids import encode_ids, open_ids
from txl_lightning.data.sources import (
    ALIGNMENT,
    SPLITS,
    WHOLE,
    Part,
    Parts,
    Source,
    cut_file,
    cut_parts,
    first_bytes,
    open_vocabulary,
    register_corpus,
)
from txl_lightning.data.vocabulary import LEVELS
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import expand, not_special

JOINED = ""  # the name of files that are no splits: joined and cut
SPLIT_WORD = re.compile(
    r"(?<![a-z])(?:(?P<train>train|training)|(?P<valid>validation|valid|val|dev|held[-_ ]?out)|(?P<test>test|testing))"
    r"(?![a-z])"
)
WORD_IN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])")
HINT = "name the splits: 'data.path={train:PATH,valid:PATH,test:PATH}'; without valid and test they are cut from train"
ALLOWED = "must be a file, a folder, a list of these, a pattern, or a mapping of train, valid and test to them"
# Files beside the data that describe it, and indices that Megatron and GPT-NeoX make of it.
DESCRIPTIONS = re.compile(
    r"(dataset_infos?|dataset_dict|state)\.json|.*\.(idx|index|metadata)|_(common_)?metadata|_SUCCESS"
    r"|cache-\w+\.arrow|.*(document|sample|shuffle|doc)_(index|idx)\.npy"
)
ABOUT = re.compile(r"(readme|licen[cs]e|citation|changelog)\b.*|.*\.md", re.IGNORECASE)
# Errors of libraries for a damaged file.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, csv.Error)


@dataclass
class Found:
    """Files that are read.

    Args:
        name: of the corpus.
        base: folder below which names say splits.
        formats: format of every file.
        left_out: files that are not read.
    """

    name: str
    base: Path
    formats: dict[Path, str] = field(default_factory=dict)
    left_out: list[Path] = field(default_factory=list)


Splits = dict[str, dict[Path, str]]  # files and their formats by split, or under JOINED


@register_corpus("file", *LEVELS, "ids", options=FileData)
def file(config: FileData, whole: bool = False) -> Source:
    """Files of the user: text, records of text, or token ids at level ids.

    `data.path` is a file, a folder, a pattern, a list of these, or a mapping of splits to them. Files whose names say
    train, valid (val, dev, held_out, …) or test are these splits (see `_split_of`). A split that is missing is cut from
    the end of train; files that are no splits are joined in the order of their paths and cut by `data.fractions`. A
    cut is never inside a character or, for words, a line.

    The suffix or `data.format` says what a file holds (`formats`). Every file is a document, and so is every record of
    a table, whose `data.column` is read. A document that a cut goes through continues as the first one of the next
    split. Nothing is put between documents, but a line break at the end of a record of text. In a vocabulary with
    `<S>`, that of a model of lm1b, every line is a sentence as in lm1b.

    Args:
        config: group `data`.
        whole: all files are one split, `WHOLE`.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions = list(config.fractions)
    is_good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(
        is_good,
        "data.fractions",
        fractions,
        "must be three positive numbers (train, valid, test) with sum 1",
    )
    name, splits = _find_splits(config, config.path, by_name=not whole)
    parts: Parts = {}
    formats: set[str] = set()
    for split, files in splits.items():
        parts[split] = _read_files(config, files)
        formats.update(files.values())
        what = "ids" if config.level == "ids" else "text"
        empty = f"must have {what}: it is empty in {_few(files)}"
        require(len(parts[split]) > 0, "data.path", config.path, empty)
    if whole:
        parts = {WHOLE: [part for of_split in parts.values() for part in of_split]}
    else:
        parts = _cut_missing(config, name, parts)
    if formats & set(READERS):
        counts = []
        for split, of_split in parts.items():
            n_documents = sum(1 + len(part.inner_starts()) for part in of_split)
            counts.append(f"{split} {n_documents:,}")
        notice(
            f"data.path={name}: {', '.join(sorted(formats))}; documents of each split: {', '.join(counts)}"
        )
    return Source(name, parts, open_vocabulary(config), subwords=2048)


def _cut_missing(config: FileData, name: str, parts: Parts) -> Parts:
    """Return all three splits: cut joined files, or the missing splits from the end of train, and say it."""
    missing = [split for split in SPLITS if split not in parts]
    if not missing:
        return {split: parts[split] for split in SPLITS}
    is_joined = JOINED in parts
    whole_files = parts[JOINED] if is_joined else parts["train"]
    first = whole_files[0]
    is_one_text = (
        len(whole_files) == 1
        and config.level != "ids"
        and not first.start
        and len(first.starts) == 0
    )
    if len(missing) == 3 and is_one_text:
        cut = cut_file(first.path, list(config.fractions), first.alignment)
    else:
        shares = np.array(config.fractions, np.float64)
        for number, split in enumerate(SPLITS):
            if split not in missing and split != "train":
                shares[number] = 0
        cut = cut_parts(whole_files, (shares / shares.sum()).tolist())
    complete: Parts = {}
    for split in SPLITS:
        is_cut = split in missing or split == "train"
        complete[split] = cut[split] if is_cut else parts[split]
    paths = {part.path: None for part in whole_files}
    if len(paths) > 1 or not is_joined:
        unit = "ids" if config.level == "ids" else "bytes"
        sizes = []
        for split, of_split in complete.items():
            sizes.append(f"{split} {sum(part.size for part in of_split):,}")
        verb = (
            f"{_few(paths)} joined and cut"
            if is_joined
            else f"{' and '.join(missing)} cut from the end of train"
        )
        notice(f"data.path={name}: {verb}, {unit} of each split: {', '.join(sizes)}")
    return complete


def _find_splits(config: FileData, given: Any, by_name: bool) -> tuple[str, Splits]:
    """Return a name for the files of `data.path`, and these files by split.

    Three paths at level ids are train, valid and test.
    """
    if config.level == "ids" and isinstance(given, list) and len(given) == 3:
        given = dict(zip(SPLITS, given, strict=True))
    if isinstance(given, Mapping):
        is_good = "train" in given and set(given) <= set(SPLITS)
        require(is_good, "data.path", dict(given), ALLOWED)
        splits: Splits = {}
        names = {}
        for split, path in given.items():
            names[split], files = _find_splits(config, path, by_name=False)
            splits[split] = files[JOINED]
        return names["train"], splits
    found = _find_files(config, given)
    if by_name and len(found.formats) > 1:
        return found.name, _by_name(found, given)
    return found.name, {JOINED: found.formats}


def _by_name(found: Found, given: Any) -> Splits:
    """Return files by the splits that their names say, or all joined if they say none.

    Raises:
        OptionError: some files are splits and others are not, or none is train.
    """
    splits: Splits = {}
    for path, name in found.formats.items():
        split = _split_of(path.absolute().relative_to(found.base), given)
        splits.setdefault(split, {})[path] = name
    if set(splits) == {JOINED}:
        return splits
    for path in splits.get(JOINED, {}):
        raise OptionError(
            "data.path", given, f"has files that are splits and {path.name}, which is none; {HINT}"
        )
    require("train" in splits, "data.path", given, f"has no file that is train; {HINT}")
    return splits


def _split_of(path: Path, given: Any) -> str:
    """Return the split that a path says: the name of the file counts before that of its folder; `JOINED` if none does.

    Raises:
        OptionError: a name says two splits.
    """
    for part in reversed(path.parts):
        words = WORD_IN_NAME.sub("-", part).lower()
        splits = sorted({str(match.lastgroup) for match in SPLIT_WORD.finditer(words)})
        require(
            len(splits) < 2,
            "data.path",
            given,
            f"has {path}, which says {' and '.join(splits)}; {HINT}",
        )
        if splits:
            return splits[0]
    return JOINED


def _find_files(config: FileData, given: Any) -> Found:
    """Return the files of a path or of a list of paths that are not empty, with one format, in the order of paths.

    Raises:
        OptionError: there are none, one cannot be read, or they have several formats.
    """
    listed = [given] if isinstance(given, str) else given
    is_good = (
        isinstance(listed, list)
        and len(listed) > 0
        and all(isinstance(path, str) and path for path in listed)
    )
    require(is_good, "data.path", given, ALLOWED)
    roots: list[Path] = []
    bases: list[Path] = []
    paths: list[Path] = []
    try:
        for path in listed:
            root = _root_of(path)
            roots.append(root)
            bases.append(root.absolute() if root.is_dir() else root.absolute().parent)
            paths.extend(_files_of(path, root))
        paths = sorted({path for path in paths if path.stat().st_size > 0})
    except OSError as error:
        which = "" if str(error.filename) == given else f"{error.filename} "
        raise OptionError(
            "data.path", given, f"{which}cannot be read ({error.strerror})"
        ) from error
    require(len(paths) > 0, "data.path", given, "must not be empty")
    found = Found(roots[0].name or roots[0].resolve().name, Path(os.path.commonpath(bases)))
    if len(roots) > 1 and len(paths) > 1:
        found.name += f" and {len(paths) - 1} more"
    for path in paths:
        format_name = format_of(path, config)
        if format_name:
            found.formats[path] = format_name
        elif path in roots:
            raise refuse_format(path, config)
        else:
            found.left_out.append(path)
    _require_one_format(found, given, config)
    return found


def _require_one_format(found: Found, given: Any, config: FileData) -> None:
    """Leave out what is written about tables; name all files that are left out.

    Raises:
        OptionError: most of what was found cannot be read, or it has several formats.
    """
    if set(found.formats.values()) - {"text"}:
        for path in list(found.formats):
            if found.formats[path] == "text" and ABOUT.fullmatch(path.name):
                del found.formats[path]
                found.left_out.append(path)
    pattern = "choose files by a pattern, as in data.path='FOLDER/**/*.txt'"
    if found.left_out:
        largest = max(found.left_out, key=_size)
        n_read = sum(map(_size, found.formats))
        n_left = sum(map(_size, found.left_out))
        reason = (
            f"has more that cannot be read than that can: {refuse_format(largest, config).allowed}"
        )
        require(n_left <= n_read, "data.path", given, f"{largest.name} {reason}; {pattern}")
        notice(
            f"data.path={given}: {_few(found.left_out)}: left out, their suffixes name no format that is read"
        )
    examples: dict[str, str] = {}
    for path, format_name in found.formats.items():
        examples.setdefault(format_name, path.name)
    several = " and ".join(f"{name} ({format_name})" for format_name, name in examples.items())
    advice = f"has several formats, {several}: {pattern}, or read all in one format, as in data.format=text"
    require(len(examples) == 1, "data.path", given, advice)


def _size(path: Path) -> int:
    return path.stat().st_size


def _root_of(given: str) -> Path:
    """Return the file or folder of a path: of a pattern the folder before it, of a `.bin` and its `.idx` the `.bin`."""
    path = not_special(given)
    index = path if path.suffix == ".idx" else Path(f"{path}.idx")
    if index.is_file() and index.with_suffix(".bin").is_file():
        return index.with_suffix(".bin")
    while glob.has_magic(str(path)) and not path.exists():
        path = path.parent
    return path


def _files_of(given: str, root: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders, or of a pattern; hidden ones and descriptions are left out.

    Raises:
        OptionError: a link leads to a file that is there too.
        OSError: a folder or file cannot be read.
    """
    if not root.is_dir():
        yield root
        return
    paths: Iterable[Path] = _walk(root)
    if glob.has_magic(given) and not Path(given).expanduser().exists():
        paths = map(Path, glob.iglob(str(Path(given).expanduser()), recursive=True))
    seen: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir() or path.name.startswith(".") or DESCRIPTIONS.fullmatch(path.name):
            continue
        target = path.resolve()
        require(
            target not in seen,
            "data.path",
            given,
            f"has {path} and {seen.get(target)}, one file, by a link",
        )
        seen[target] = path
        yield path


def _walk(root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "__pycache__"
        ]
        if (
            "state.json" in names and "dataset_info.json" in names
        ):  # of save_to_disk, which lists its files
            state = json.loads(Path(folder, "state.json").read_bytes())
            names = [file["filename"] for file in state["_data_files"]]
        for name in names:
            yield Path(folder, name)


def _few(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    text = ", ".join(names[:3])
    if len(names) > 3:
        text += f" and {len(names) - 3} more files"
    return text


def _read_files(config: FileData, files: dict[Path, str]) -> list[Part]:
    """Return the parts that files hold, without empty ones.

    Raises:
        OptionError: one cannot be read as its format says.
    """
    parts = []
    for path, name in files.items():
        if name in READERS:
            part = _read_records(config, path, name)
        elif config.level == "ids":
            part = open_ids(path, config, name)
        else:
            require(
                config.column is None,
                "data.column",
                config.column,
                f"must be null for {path}: it is text",
            )
            check_text(path, config)
            start = len(BOM) if first_bytes(path).startswith(BOM) else 0
            part = Part(path, start, alignment=ALIGNMENT[config.level])
        is_array = config.level == "ids" or name in READERS
        if not is_array or part.size > 0:
            parts.append(part)
    return parts


def _read_records(config: FileData, path: Path, name: str) -> Part:
    """Write the records of a file into the cache, once, and return the part that holds them.

    Raises:
        OptionError: a record cannot be read, and `data.skip_bad` is off.
    """
    is_ids = config.level == "ids"
    directory = expand(config.cache_dir)
    file_name = "ids.int32" if is_ids else "text.uint8"
    key = cache_key(
        checksum_once(directory, path), "records", name, config.column, is_ids, config.skip_bad
    )
    usual = ID_COLUMNS if is_ids else TEXT_COLUMNS
    column = Column(path, config.column, usual)

    def write(folder: Path) -> Description:
        return _write_records(config, name, column, folder, file_name)

    arrays, counts = cached(directory, key, write)
    if counts["missing"]:
        notice(f"{path}: {counts['missing']:,} records have no {counts['column']}; left out")
    if counts["bad"]:
        notice(
            f"{path}: {counts['bad']:,} records cannot be read; left out. The first: {counts['first_bad']}"
        )
    stored = directory / key / file_name
    if is_ids:
        return Part(stored, format="int32", starts=arrays["starts"])
    return Part(stored, alignment=ALIGNMENT[config.level], starts=arrays["starts"])


def _write_records(
    config: FileData, name: str, column: Column, folder: Path, file_name: str
) -> Description:
    unit = "line" if name in ("jsonl", "tsv") else "record"
    starts = array("q")
    counts: Description = {"missing": 0, "bad": 0, "first_bad": ""}
    size = 0
    number = 0
    try:
        with (folder / file_name).open("wb") as stored:
            for number, value in READERS[name](column.path, column):
                if value is None:
                    counts["missing"] += 1
                    continue
                try:
                    contents = _encoded(value, config.level == "ids")
                except BAD_RECORD as error:
                    if not config.skip_bad:
                        way_on = "; data.skip_bad=true leaves such records out"
                        raise _unreadable(column.path, f"{unit} {number}", error, way_on) from error
                    counts["bad"] += 1
                    counts["first_bad"] = counts["first_bad"] or f"{unit} {number}, {error}"
                    continue
                for content in contents:
                    starts.append(size)
                    size += stored.write(content)
    except UNREADABLE as error:
        if isinstance(error, UserError) or getattr(error, "errno", None) is not None:  # a full disk
            raise
        place = f"the file after {unit} {number}" if number else "the file"
        raise _unreadable(column.path, place, error) from error
    positions = np.array(starts, np.int64)
    if config.level == "ids":
        positions //= 4
    positions.tofile(folder / "starts.int64")
    counts["column"] = column.name
    return counts


def _unreadable(path: Path, place: str, error: Exception, way_on: str = "") -> OptionError:
    reason = " ".join(str(error).split())[:200]
    return OptionError(
        "data.path", str(path), f"{place} cannot be read ({type(error).__name__}: {reason}){way_on}"
    )


def _encoded(value: Any, is_ids: bool) -> list[bytes]:
    """Return the bytes of a record's value: text that ends with a line break, or ids.

    Raises:
        ValueError, TypeError: it is neither, or the reader could not read it.
    """
    if isinstance(value, Exception):
        raise value
    if is_ids:
        return encode_ids(value)
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"must be a text, not {str(value)[:40]}")
    if not text.endswith("\n"):
        text += "\n"
    return [text.encode()]
