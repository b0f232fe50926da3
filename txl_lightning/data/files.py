"""A user's files (`data=file`): which files are read, and which of them are splits."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import READERS, check_text, format_of, formats_of, read_records
from txl_lightning.data.ids import open_ids
from txl_lightning.data.sources import (
    SPLITS,
    UNPACK,
    WHOLE,
    Part,
    Parts,
    Source,
    cut_parts,
    cut_text,
    open_vocabulary,
    reading,
    register_corpus,
    text_file,
)
from txl_lightning.data.vocabulary import LEVELS
from txl_lightning.errors import OptionError, notice, require
from txl_lightning.files import not_special

JOINED = ""  # names files that are no splits: joined and cut
SPLIT_WORD = re.compile(
    r"(?<![a-z])(?:(?P<train>train|training)|(?P<valid>validation|valid|val|dev|held[-_ ]?out)|(?P<test>test|testing))"
    r"(?![a-z])"
)
WORD_IN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])")
HINT = "name the splits: 'data.path={train:PATH,valid:PATH,test:PATH}'; without valid and test they are cut from train"
ALLOWED = "must be a file, a folder, a list of these, a pattern, or a mapping of train, valid and test to them"
NO_FILE = "must not be empty: it has no file with text; several patterns are a list, as in data.path='[a/*.tex,a/*.md]'"
PATTERN = "choose files by a pattern, as in data.path='FOLDER/**/*.txt', or read all as text by data.format=text"
# Files beside the data that describe it, and indices that Megatron and GPT-NeoX make from it.
DESCRIPTIONS = re.compile(
    r"(dataset_infos?|dataset_dict|state)\.json|.*\.(idx|index|metadata)|_(common_)?metadata|_SUCCESS"
    r"|cache-\w+\.arrow|.*(document|sample|shuffle|doc)_(index|idx)\.npy"
)
ABOUT = re.compile(r"(readme|licen[cs]e|citation|changelog)\b.*|.*\.md", re.IGNORECASE)

Files = list[Path]


@register_corpus("file", *LEVELS, "ids", options=FileData)
def file(config: FileData, whole: bool = False) -> Source:
    """A user's files: text, text records, or token ids at level ids.

    `data.path` is a file, a folder, a pattern, a list with these, or a mapping from splits to them. Files whose names
    say train, valid (val, dev, held_out, …) or test are these splits (see `_split_of`). A missing split is cut from
    train's end; files that are no splits are joined, ordered by path, and cut by `data.fractions`. A cut is never
    inside a character or, for words, a line.

    The suffix or `data.format` says what a file holds (`formats`). Every file is a document, and so is every record in
    a table, whose `data.column` is read. A document that a cut goes through continues as the next split's first one.
    Nothing is put between documents, except a line break after a text record. If the vocabulary has `<S>`, as for a
    model trained on lm1b, every line is a sentence as in lm1b.

    Args:
        config: group `data`.
        whole: all files are one split, `WHOLE`.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions = config.fractions
    require(
        len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6,
        "data.fractions",
        list(fractions),
        "must be three positive numbers (train, valid, test) with sum 1",
    )
    path: Any = config.path
    if isinstance(path, Mapping):
        files = _by_mapping(path, config)
        path = path["train"]
    elif whole:
        files = {JOINED: find_files(config, path)}
    else:
        files = _by_name(find_files(config, path), path)
    name = _name_of(path)
    parts = {
        split: _open_files(
            config,
            files_of_split,
        )
        for split, files_of_split in files.items()
    }
    vocabulary = open_vocabulary(config)
    if whole:
        return Source(
            name,
            {WHOLE: [*chain.from_iterable(parts.values())]},
            vocabulary,
        )
    return Source(name, _cut_missing(config, name, parts), vocabulary)


def _by_mapping(paths: Mapping[str, Any], config: FileData) -> dict[str, Files]:
    """Return the files for every split that a mapping names.

    Raises:
        OptionError: it names other splits, or a file in train is in another split too.
    """
    is_good = "train" in paths and set(paths) <= set(SPLITS)
    require(is_good, "data.path", dict(paths), ALLOWED)
    files = {
        split: find_files(
            config,
            given,
        )
        for split, given in paths.items()
    }
    for split in files.keys() - {"train"}:
        shared = set(files["train"]) & set(files[split])
        require(
            not shared,
            "data.path",
            dict(paths),
            f"has {_few(shared)} in train and in {split}",
        )
    return files


def _name_of(path: Any) -> str:
    """Return a corpus's name: its file or folder, or the first ones."""
    paths = [path] if isinstance(path, str) else path
    return _few(Path(name).expanduser().resolve() for name in paths)


def _cut_missing(config: FileData, name: str, parts: Parts) -> Parts:
    """Return all three splits: cut joined files, or cut the missing splits from train's end, and say so."""
    missing = [split for split in SPLITS if split not in parts]
    texts = parts.get(JOINED) or parts["train"]
    if missing and JOINED not in parts:
        notice(f"data.path={name}: {' and '.join(missing)} cut from the end of train")
    elif len(texts) > 1 and missing:
        names = _few(part.origin or part.path for part in texts)
        notice(f"data.path={name}: {names} joined and cut")
    elif missing and texts[0].is_plain_text:
        return cut_text(texts[0], config.fractions)
    shares = dict(zip(SPLITS, config.fractions, strict=True))
    for split in parts.keys() & {"valid", "test"}:
        shares[split] = 0
    total = sum(shares.values())
    cut = cut_parts(texts, [share / total for share in shares.values()])
    for split in shares.keys() - {"train"}:
        cut[split] = parts.get(split, cut[split])
    return cut


def _by_name(files: Files, given: Any) -> dict[str, Files]:
    """Return files by the splits that their names say, or all joined if they say none or there is one file.

    Raises:
        OptionError: some files are splits and some are not, or none is train.
    """
    if len(files) == 1:
        return {JOINED: files}
    base = os.path.commonpath([path.absolute().parent for path in files])
    splits: dict[str, Files] = {}
    for path in files:
        split = _split_of(path.absolute().relative_to(base), given)
        splits.setdefault(split, []).append(path)
    others = splits.get(JOINED, [])
    require(
        len(splits) == 1 or not others,
        "data.path",
        given,
        f"has split files and {_few(others)}, whose name says no split; {HINT}",
    )
    require(
        "train" in splits or len(others) > 0,
        "data.path",
        given,
        f"has no file for train; {HINT}",
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
        require(
            len(splits) < 2,
            "data.path",
            given,
            f"has {path}, which says {' and '.join(splits)}; {HINT}",
        )
        if splits:
            return splits[0]
    return JOINED


def find_files(config: FileData, given: Any) -> Files:
    """Return the non-empty files for a path or a list of paths, with one format, ordered by path.

    Raises:
        OptionError: there are none, one cannot be read, or they have several formats.
    """
    by_format: dict[str, Files] = {}
    for path in _list_files(given):
        by_format.setdefault(format_of(path, config), []).append(path)
    require(len(by_format) > 0, "data.path", given, NO_FILE)
    left_out = by_format.pop("", [])
    texts = by_format.get("text", [])
    if len(by_format) > 1 and all(ABOUT.fullmatch(path.name) for path in texts):
        left_out += by_format.pop("text", [])
    allowed = f"data.format={' or '.join(formats_of(config.level))} if it is one"
    require(
        len(by_format) > 0,
        "data.path",
        _few(left_out),
        f"has no suffix that names a format; {allowed}",
    )
    require(
        len(by_format) == 1,
        "data.path",
        given,
        f"has several formats, {' and '.join(sorted(by_format))}: {PATTERN}",
    )
    if left_out:
        notice(f"data.path={given}: {_few(left_out)} left out: no format that is read")
    (files,) = by_format.values()
    packed = [path for path in files if path.suffix.lower() in UNPACK]
    twice = [path for path in packed if path.with_suffix("") in files]
    require(
        len(twice) == 0,
        "data.path",
        given,
        f"has {_few(twice)} compressed and uncompressed",
    )
    return files


def _list_files(given: Any) -> list[Path]:
    """Return the non-empty files for a path or a list of paths, each once, ordered by path.

    Raises:
        OptionError: a path is none, or cannot be read.
    """
    listed = [given] if isinstance(given, str) else given
    is_good = isinstance(
        listed,
        list,
    ) and all(isinstance(path, str) and path for path in listed)
    require(is_good, "data.path", given, ALLOWED)
    paths: dict[Path, Path] = {}  # by the files that links lead to
    try:
        for path in chain.from_iterable(map(_expanded, listed)):
            if path.stat().st_size > 0:
                paths.setdefault(path.resolve(), path)
    except OSError as error:
        reason = f"cannot be read ({error.strerror}: {error.filename})"
        raise OptionError("data.path", given, reason) from error
    return sorted(paths.values())


def _expanded(given: str) -> Iterator[Path]:
    """Yield a path's file, or the files in a folder or pattern, without hidden ones and descriptions.

    Of a `.bin` and its `.idx` the `.bin` is the file, also if the path names the index or has no suffix.

    Raises:
        OSError: a folder or file cannot be read.
    """
    path = not_special(given)
    index = path if path.suffix == ".idx" else Path(f"{path}.idx")
    ids = index.with_suffix(".bin")
    if index.is_file() and ids.is_file():
        yield ids
        return
    pattern = str(path)
    if path.is_dir():
        pattern = f"{glob.escape(pattern)}/**"
    elif path.exists() or not glob.has_magic(pattern):
        yield path
        return
    for name in glob.iglob(pattern, recursive=True):
        path = Path(name)
        if path.is_dir():
            os.scandir(path).close()  # glob passes over a folder that may not be read
        elif not DESCRIPTIONS.fullmatch(path.name):
            yield path


def _few(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    text = ", ".join(names[:3])
    if len(names) > 3:
        text += f" and {len(names) - 3} more files"
    return text


def _open_files(config: FileData, files: Files) -> list[Part]:
    """Return the parts that files hold, without empty ones.

    Raises:
        OptionError: one cannot be read as its format says, or all are empty.
    """
    parts = []
    for path in files:
        name = format_of(path, config)
        if name in READERS:
            part = read_records(path, name, config)
        elif config.level == "ids":
            with reading(path):
                part = open_ids(path, name, config)
        else:
            start = check_text(path, config)
            part = replace(text_file(path, config), start=start)
        if len(part.open()[0]) > 0:
            parts.append(part)
    require(
        len(parts) > 0,
        "data.path",
        config.path,
        f"must have text or ids: {_few(files)} is empty",
    )
    return parts
