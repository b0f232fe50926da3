"""Files of the user (`data=file`): which files are read, which of them are splits, and what they hold."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.cache import Description, cache_key, cached, checksum_once
from txl_lightning.data.formats import (
    BAD_RECORD,
    READERS,
    check_text,
    format_of,
    read_column,
    refuse_format,
)
from txl_lightning.data.ids import encode_ids, open_ids
from txl_lightning.data.sources import (
    ALIGNMENT,
    BOM,
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
PATTERN = "choose files by a pattern, as in data.path='FOLDER/**/*.txt', or read all as text by data.format=text"
# Files beside the data that describe it, and indices that Megatron and GPT-NeoX make of it.
DESCRIPTIONS = re.compile(
    r"(dataset_infos?|dataset_dict|state)\.json|.*\.(idx|index|metadata)|_(common_)?metadata|_SUCCESS"
    r"|cache-\w+\.arrow|.*(document|sample|shuffle|doc)_(index|idx)\.npy"
)
ABOUT = re.compile(r"(readme|licen[cs]e|citation|changelog)\b.*|.*\.md", re.IGNORECASE)
# Errors of libraries for a damaged file.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, csv.Error)

Files = dict[Path, str]  # files and their formats


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
    `<S>`, as a model of lm1b has, every line is a sentence as in lm1b.

    Args:
        config: group `data`.
        whole: all files are one split, `WHOLE`.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions = config.fractions
    is_good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    allowed = "must be three positive numbers (train, valid, test) with sum 1"
    require(is_good, "data.fractions", list(fractions), allowed)
    path: Any = config.path
    if config.level == "ids" and isinstance(path, list) and len(path) == 3:
        path = dict(zip(SPLITS, path, strict=True))
    if isinstance(path, Mapping):
        is_good = "train" in path and set(path) <= set(SPLITS)
        require(is_good, "data.path", dict(path), ALLOWED)
        splits = {split: find_files(config, paths) for split, paths in path.items()}
        path = path["train"]
    elif whole:
        splits = {JOINED: find_files(config, path)}
    else:
        splits = _by_name(find_files(config, path), path)
    parts = {split: _read_files(config, files) for split, files in splits.items()}
    name = _name_of(path)
    if whole:
        every = [part for of_split in parts.values() for part in of_split]
        return Source(name, {WHOLE: every}, open_vocabulary(config))
    parts = _cut_missing(config, name, parts)
    return Source(name, parts, open_vocabulary(config), subwords=2048)


def _name_of(path: Any) -> str:
    """Return the name of a corpus: its file or folder, or the first one."""
    first = path if isinstance(path, str) else path[0]
    name = Path(first).expanduser().resolve().name
    if first is not path and len(path) > 1:
        name += f" and {len(path) - 1} more"
    return name


def _cut_missing(config: FileData, name: str, parts: Parts) -> Parts:
    """Return all three splits: cut joined files, or the missing splits from the end of train, and say it."""
    missing = [split for split in SPLITS if split not in parts]
    if not missing:
        return {split: parts[split] for split in SPLITS}
    whole_files = parts.get(JOINED) or parts["train"]
    if "train" in parts:
        notice(f"data.path={name}: {' and '.join(missing)} cut from the end of train")
    elif len(whole_files) > 1:
        notice(f"data.path={name}: {_few(part.path for part in whole_files)} joined and cut")
    first = whole_files[0]
    is_one_text = len(whole_files) == 1 and first.format == "plain" and len(first.starts) == 0
    if is_one_text and JOINED in parts and not first.start:
        return cut_file(first.path, config.fractions, first.alignment)
    shares = []
    for split, fraction in zip(
        SPLITS,
        config.fractions,
        strict=True,
    ):
        is_cut = split in missing or split == "train"
        shares.append(fraction if is_cut else 0.0)
    cut = cut_parts(whole_files, [share / sum(shares) for share in shares])
    for split in ("valid", "test"):
        if split in parts:
            cut[split] = parts[split]
    return cut


def _by_name(files: Files, given: Any) -> dict[str, Files]:
    """Return files by the splits that their names say, or all joined if they say none or there is one file.

    Raises:
        OptionError: some files are splits and others are not, or none is train.
    """
    if len(files) == 1:
        return {JOINED: files}
    base = os.path.commonpath([path.absolute().parent for path in files])
    splits: dict[str, Files] = {}
    for path, name in files.items():
        split = _split_of(path.absolute().relative_to(base), given)
        splits.setdefault(split, {})[path] = name
    if set(splits) == {JOINED}:
        return splits
    for path in splits.get(JOINED, {}):
        reason = f"has files that are splits and {path.name}, which is none; {HINT}"
        raise OptionError("data.path", given, reason)
    require(
        "train" in splits,
        "data.path",
        given,
        f"has no file that is train; {HINT}",
    )
    return splits


def _split_of(path: Path, given: Any) -> str:
    """Return the split that a path says: the file's name counts before its folder's; `JOINED` if none does.

    Raises:
        OptionError: a name says two splits.
    """
    for part in reversed(path.parts):
        words = WORD_IN_NAME.sub("-", part).lower()
        splits = sorted({str(match.lastgroup) for match in SPLIT_WORD.finditer(words)})
        allowed = f"has {path}, which says {' and '.join(splits)}; {HINT}"
        require(
            len(splits) < 2,
            "data.path",
            given,
            allowed,
        )
        if splits:
            return splits[0]
    return JOINED


def find_files(config: FileData, given: Any) -> Files:
    """Return the files of a path or of a list of paths that are not empty, with one format, in the order of paths.

    Raises:
        OptionError: there are none, one cannot be read, or they have several formats.
    """
    listed = [given] if isinstance(given, str) else given
    is_good = isinstance(listed, list) and all(isinstance(path, str) and path for path in listed)
    require(is_good, "data.path", given, ALLOWED)
    paths: dict[Path, Path] = {}  # by the files that links lead to
    try:
        for text in listed:
            for path in _expanded(text):
                if path.stat().st_size > 0:
                    paths.setdefault(path.resolve(), path)
    except OSError as error:
        which = "" if str(error.filename) == given else f"{error.filename} "
        reason = f"{which}cannot be read ({error.strerror})"
        raise OptionError("data.path", given, reason) from error
    files: Files = {}
    left_out = []
    for path in sorted(paths.values()):
        name = format_of(path, config)
        if name:
            files[path] = name
        else:
            left_out.append(path)
    if set(files.values()) - {"text"}:  # a page about the tables
        about = [path for path in files if files[path] == "text" and ABOUT.fullmatch(path.name)]
        for path in about:
            left_out.append(path)
            del files[path]
    if left_out and not files:
        raise refuse_format(left_out[0], config)
    require(
        len(files) > 0,
        "data.path",
        given,
        "must not be empty",
    )
    if left_out:
        notice(f"data.path={given}: {_few(left_out)} left out: no format that is read")
    examples = {name: path.name for path, name in files.items()}
    several = " and ".join(f"{file_name} ({name})" for name, file_name in sorted(examples.items()))
    require(
        len(examples) == 1,
        "data.path",
        given,
        f"has several formats, {several}: {PATTERN}",
    )
    return files


def _expanded(given: str) -> Iterator[Path]:
    """Yield the file of a path, or the files of a folder or pattern, without hidden ones and descriptions.

    Of a `.bin` and its `.idx` the `.bin` is the file, also if the path names the index or has no suffix.

    Raises:
        OSError: a folder or file cannot be read.
    """
    path = not_special(given)
    index = path if path.suffix == ".idx" else Path(f"{path}.idx")
    pattern = str(path)
    if index.is_file() and index.with_suffix(".bin").is_file():
        yield index.with_suffix(".bin")
        return
    if path.is_dir():
        pattern = f"{glob.escape(pattern)}/**"
    elif path.exists() or not glob.has_magic(pattern):
        yield path
        return
    for name in glob.iglob(pattern, recursive=True):
        path = Path(name)
        if path.is_dir():
            os.scandir(path).close()  # glob passes over a folder that may not be read
        elif path.name == "state.json" and path.with_name("dataset_info.json").is_file():
            # Of save_to_disk: it lists its files.
            for listed in json.loads(path.read_bytes()).get("_data_files", ()):
                yield path.with_name(listed["filename"])
        elif not DESCRIPTIONS.fullmatch(path.name):
            yield path


def _few(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    text = ", ".join(names[:3])
    if len(names) > 3:
        text += f" and {len(names) - 3} more files"
    return text


def _read_files(config: FileData, files: Files) -> list[Part]:
    """Return the parts that files hold.

    Raises:
        OptionError: one cannot be read as its format says, or all are empty.
    """
    parts = []
    for path, name in files.items():
        if name in READERS:
            part = _read_records(config, path, name)
            if len(part.starts) > 0:
                parts.append(part)
        elif config.level == "ids":
            parts.append(open_ids(path, config, name))
        else:
            check_text(path, config)
            start = len(BOM) if first_bytes(path).startswith(BOM) else 0
            parts.append(
                Part(
                    path,
                    start,
                    alignment=ALIGNMENT[config.level],
                )
            )
    allowed = f"must have text or ids: {_few(files)} is empty"
    require(
        len(parts) > 0,
        "data.path",
        config.path,
        allowed,
    )
    return parts


def _read_records(config: FileData, path: Path, name: str) -> Part:
    """Write the records of a file into the cache, once, and return the part that holds them.

    Raises:
        OptionError: a record cannot be read, and `data.skip_bad` is off.
    """
    is_ids = config.level == "ids"
    directory = expand(config.cache_dir)
    file_name = "ids.int32" if is_ids else "text.uint8"
    checksum = checksum_once(directory, path)
    key = cache_key(
        checksum,
        "records",
        name,
        config.column,
        is_ids,
        config.skip_bad,
    )

    def write(folder: Path) -> Description:
        with (folder / file_name).open("wb") as stored:
            starts, counts = _write_records(config, path, name, stored)
        np.array(starts, np.int64).tofile(folder / "starts.int64")
        return counts

    arrays, counts = cached(directory, key, write)
    for what, n in counts.items():
        if n:
            notice(f"{path}: {n:,} records {what}; left out")
    stored = directory / key / file_name
    if is_ids:
        return Part(
            stored,
            format="int32",
            starts=arrays["starts"] // 4,
        )
    return Part(
        stored,
        alignment=ALIGNMENT[config.level],
        starts=arrays["starts"],
    )


def _write_records(
    config: FileData, path: Path, name: str, stored: Any
) -> tuple[array[int], dict[str, int]]:
    """Write the records of a file; return the bytes where each begins, and how many are left out."""
    unit = "line" if name == "jsonl" else "record"
    starts = array("q")
    counts = {"lack the column": 0, "cannot be read": 0}
    size = 0
    number = 0
    try:
        for number, value in read_column(path, name, config):
            if value is None:
                counts["lack the column"] += 1
                continue
            try:
                contents = _encoded(value, config.level == "ids")
            except BAD_RECORD as error:
                if not config.skip_bad:
                    way_on = "; data.skip_bad=true leaves such records out"
                    raise _unreadable(
                        path,
                        f"{unit} {number}",
                        error,
                        way_on,
                    ) from error
                counts["cannot be read"] += 1
                continue
            for content in contents:
                starts.append(size)
                size += stored.write(content)
    except UNREADABLE as error:
        if isinstance(error, UserError) or getattr(
            error,
            "errno",
            None,
        ):  # a full disk
            raise
        place = f"the file after {unit} {number}" if number else "the file"
        raise _unreadable(path, place, error) from error
    return starts, counts


def _unreadable(path: Path, place: str, error: Exception, way_on: str = "") -> OptionError:
    reason = " ".join(str(error).split())[:200]
    text = f"{place} cannot be read ({type(error).__name__}: {reason}){way_on}"
    return OptionError("data.path", path, text)


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
