"""Files of the user: which of them are splits, which are text, and the records of JSON lines, CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.ids import map_ids
from txl_lightning.data.reading import (
    BOMS_OF_UTF_16,
    HEAD_BYTES,
    SPLITS,
    WHOLE,
    Part,
    cut_into_splits,
    cut_parts,
    first_bytes,
    kind_of,
    mapped,
)
from txl_lightning.data.sources import ALIGNMENT, Source, open_vocabulary
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import expand, file_checksum, not_special

SPLIT_NAMES = {
    "train": r"train(?:ing|set|data)?",
    "valid": r"val|valid(?:ation|set)?|dev(?:el|elopment|set)?|eval(?:uation)?|held-?out",
    "test": r"test(?:ing|set|data)?",
}
HINT = "name the splits: 'data.path={train:PATH,valid:PATH,test:PATH}', without valid and test they are cut from train"
TEXT_COLUMN = "text"
RECORDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # by name: these formats are text too
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
Files = dict[str, list[Path]]  # by split, or under "" if they are joined and cut


def file(config: FileData) -> Source:
    """Files of the user: text, or token ids at level ids.

    `data.path` is a file, a folder, a list of both, or a mapping of splits to these. Files whose names say train, valid
    (val, dev, …) or test are these splits (see `_by_name`). A split that is missing is cut from the end of train; other
    files are joined in the order of their paths and cut by `data.fractions`. A cut is never inside a character or, for
    words, a line.

    Every file is a document, and every record of JSON lines, CSV and Parquet, of which the column `text` is read. A
    document that a cut goes through continues as the first one of the next split. Nothing is put between documents,
    but a line break at the end of a record. In a vocabulary with `<S>`, that of a model of lm1b, every line is a
    sentence as in lm1b.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions = list(config.fractions)
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    name, files = _files(config.path, config.level == "ids")
    parts = {split: _parts(paths, config) for split, paths in files.items()}
    for split, found in parts.items():
        of_split = f" in {', '.join(path.name for path in files[split])}" if split else ""
        have = "ids: it is empty, or a folder without .npy files" if config.level == "ids" else "text: it is empty"
        require(bool(found), "data.path", config.path, f"must have {have}{of_split}")
    joined = parts.pop("", None) or parts["train"]
    missing = [split for split in SPLITS if split not in parts]
    if missing:
        shares = [
            share * (split in missing or split == "train") for split, share in zip(SPLITS, fractions, strict=True)
        ]
        whole = joined == [Part(joined[0].path, alignment=joined[0].alignment)] and len(missing) == 3
        if whole and config.level != "ids":
            cut = cut_into_splits([joined[0].path], fractions, joined[0].alignment)  # not unpacked to know its size
        else:
            cut = cut_parts(joined, [_size(part) for part in joined], [share / sum(shares) for share in shares])
        parts |= {split: cut[split] for split in {"train", *missing}}
        if len({part.path for part in joined}) > 1 or (len(missing) < 3 and "train" in files):
            unit = "ids" if config.level == "ids" else "bytes"
            sizes = ", ".join(f"{split} {sum(map(_size, parts[split])):,}" for split in SPLITS)
            verb = "joined and cut" if "" in files else f"{' and '.join(missing)} cut from the end of train"
            notice(f"data.path={name}: {verb}, {unit} of each split: {sizes}")
    closed = config.sentence_marks == "both"
    return Source(
        name,
        {split: parts[split] for split in SPLITS},
        open_vocabulary(config),
        closed_sentences=closed,
        documents=True,
    )


def whole(config: FileData) -> Source:
    """Files of the user, all of them as one split; see `file`."""
    name, files = _files(config.path, config.level == "ids", splits=False)
    parts = [part for paths in files.values() for part in _parts(paths, config)]
    require(bool(parts), "data.path", config.path, "must not be empty")
    closed = config.sentence_marks == "both"
    return Source(name, {WHOLE: parts}, open_vocabulary(config), closed_sentences=closed, documents=True)


def _size(part: Part) -> int:
    """Return the number of bytes or ids of a part; its start and stop are not fractions."""
    if part.stop is None and part.alignment == "byte" and part.format != "plain":
        return len(map_ids(part.path, part.format)) - int(part.start)
    if part.stop is None:
        with mapped(part.path) as text:
            return len(text) - int(part.start)
    return int(part.stop) - int(part.start)


def _files(given: Any, ids: bool, splits: bool = True) -> tuple[str, Files]:
    """Return a name for the files of `data.path`, and the files that are not empty, by split or joined."""
    allowed = "must be a file, a folder, a list of these or a mapping of train, valid and test to them (data.path=PATH)"
    if isinstance(given, Mapping):
        require("train" in given and set(given) <= set(SPLITS), "data.path", dict(given), allowed)
        named = {split: _files(path, ids) for split, path in given.items()}
        flat = {split: sorted({path for of in files.values() for path in of}) for split, (_, files) in named.items()}
        return named["train"][0], flat
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    require(bool(listed) and all(isinstance(path, str) and path for path in listed), "data.path", given, allowed)
    try:
        roots = [not_special(path) for path in listed]
        of_roots = [_files_of_folder(root, ids) if root.is_dir() else [root] for root in roots]
        filled = {path: path.stat().st_size for paths in of_roots for path in paths if path.stat().st_size}
        for path in filled:
            path.open("rb").close()
    except OSError as error:
        which = f"{error.filename} " if str(error.filename) != given else ""
        raise OptionError("data.path", given, f"{which}cannot be read ({error.strerror})") from error
    name = roots[0].name or roots[0].resolve().name
    if ids and len(roots) == 3:
        return f"{name} and 2 more", dict(
            zip(SPLITS, [[p for p in paths if p in filled] for paths in of_roots], strict=True)
        )
    require(bool(filled), "data.path", given, "must not be empty" if not ids else "must have ids: it is empty")
    if len(roots) > 1 and len(filled) > 1:
        name += f" and {len(filled) - 1} more"
    if len(filled) == 1 or not splits:
        return name, {"": sorted(filled)}
    base = roots[0] if len(roots) == 1 else Path(os.path.commonpath([root.absolute().parent for root in roots]))
    return name, _by_name(filled, base.absolute(), given, len(roots) == 1)


def _by_name(sizes: Mapping[Path, int], base: Path, given: Any, is_folder: bool) -> Files:
    """Return files by the splits that their names below a folder say, or all joined under "" if they say none.

    Files are splits if one is train and another valid or test. Of a folder, the files that are no split are left out if
    they are smaller in all: a README beside the data. If they are larger, as in a folder of code, all are joined.

    Raises:
        OptionError: some files of a list are splits and others are not.
    """
    found: Files = {}
    for path in sorted(sizes):
        says = [
            split for split, name in SPLIT_NAMES.items() if _says(path.absolute().relative_to(base).as_posix(), name)
        ]
        found.setdefault(says[0] if len(says) == 1 else "", []).append(path)
    others = found.pop("", [])
    held_out = any(split in found for split in ("valid", "test"))
    larger = sum(map(sizes.__getitem__, others)) > sum(sizes.values()) / 2
    if not held_out or (is_folder and (larger or "train" not in found)):
        return {"": sorted(sizes)}
    mixed = f"has files that are splits and {others[0].name}, which is none; {HINT}" if others else HINT
    require(is_folder or ("train" in found and not others), "data.path", given, mixed)
    if others:
        notice(f"data.path={given}: the names of {_few(others)} say no split; left out")
    return found


def _says(name: str, word: str) -> bool:
    return bool(re.search(rf"(?<![a-z])(?:{word})(?![a-z])", name, re.IGNORECASE))


def _few(paths: list[Path]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return f"{names} and {len(paths) - 3} more files" if len(paths) > 3 else names


def _files_of_folder(root: Path, ids: bool) -> list[Path]:
    """Return the text files of a folder and its folders, or `.npy` files; what is left out is named.

    Names that begin with a dot and `__pycache__` are not entered.

    Raises:
        OSError: a folder or file cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    files: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    if ids:
        npy = [path for path in files if path.suffix == ".npy"]
        return npy or (files if len(files) == 1 else [p for p in files if p.suffix == ".bin"])
    texts: list[Path] = []
    others: list[Path] = []
    for path in sorted(path for path in files if path.is_file()):
        (texts if kind_of(first_bytes(path)) in ("text", "compressed", "Parquet") else others).append(path)
    if others:
        notice(f"data.path={root}: {_few(others)}: no text; left out")
    return texts


def _parts(paths: Iterable[Path], config: FileData) -> list[Part]:
    """Return the parts of files: one for each document."""
    return [part for path in paths for part in (_ids if config.level == "ids" else _documents)(path, config)]


def _ids(path: Path, config: FileData) -> list[Part]:
    ids = map_ids(path, config.dtype)  # closed at the next one: a process has few open files
    shape = f"must have one dimension, not the shape {ids.shape}: save ids.ravel()"
    require(ids.ndim == 1, "data.path", path, shape)
    return [Part(path, format=ids.dtype.name)] if len(ids) else []


def _documents(path: Path, config: FileData) -> list[Part]:
    """Return the documents of a file of text, or of records.

    Raises:
        OptionError: it is neither.
    """
    name = path.name
    while name.endswith(COMPRESSED):
        name = name.rpartition(".")[0]
    suffix = Path(name).suffix.lower()
    with mapped(path) as text:
        kind = kind_of(head := bytes(text[:HEAD_BYTES]))
        require(kind != "NumPy", "data.level", config.level, f"must be ids for {path}: it holds an array, no text")
        if kind == "binary" and config.level == "byte":
            notice(f"data.path={path}: not a text; its bytes are read as they are")
        elif kind not in ("text", "Parquet"):
            raise OptionError("data.path", path, f"must be a text, not {kind}{'; unpack it' * (kind == 'an archive')}")
        if kind == "Parquet":
            return _stored(path, _parquet(path), config)
        if head.startswith(BOMS_OF_UTF_16):
            return _stored(path, (text[:].decode("utf-16") for _ in range(1)), config)
        if suffix in RECORDS and (suffix not in (".csv", ".tsv") or TEXT_COLUMN in _header(head, suffix)):
            return _stored(path, _records(text[:], suffix), config)
    return [Part(path, len(codecs.BOM_UTF8) * head.startswith(codecs.BOM_UTF8), alignment=ALIGNMENT[config.level])]


def _header(head: bytes, suffix: str) -> list[str]:
    line = head.decode("utf-8-sig", errors="replace").partition("\n")[0].strip()
    return next(csv.reader([line], delimiter="\t" if suffix == ".tsv" else ","), [])


def _records(content: bytes, suffix: str) -> Iterator[Any]:
    """Yield the texts of JSON lines, JSON (a list), or CSV."""
    text = content.decode("utf-8-sig")
    if suffix in (".csv", ".tsv"):
        csv.field_size_limit(1 << 30)
        rows: Iterable[Any] = csv.DictReader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ",")
    elif suffix == ".json" and text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = map(json.loads, filter(str.strip, text.split("\n")))
    for row in rows:
        if not isinstance(row, str) and not isinstance(row.get(TEXT_COLUMN), str):
            raise LookupError(f"one is {row}"[:200])
        yield row if isinstance(row, str) else row[TEXT_COLUMN]


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as parquet  # comes with `datasets`; few need it

    for batch in parquet.ParquetFile(path).iter_batches(columns=[TEXT_COLUMN]):
        yield from batch.column(0).to_pylist()


def _stored(path: Path, records: Iterator[Any], config: FileData) -> list[Part]:
    """Write the texts of records as UTF-8 into `data.cache_dir`, once for each content; return a part for each record.

    Raises:
        OptionError: a record has no text, or the file cannot be read.
        UserError: the cache cannot be written.
    """
    folder = expand(config.cache_dir) / "records" / file_checksum(path)[:32]
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                unfinished, starts = Path(scratch, "unfinished"), [0]
                unfinished.mkdir()
                with (unfinished / "text").open("wb") as file:
                    for record in records:
                        starts.append(starts[-1] + file.write(f"{record.removesuffix(chr(10))}\n".encode()))
                np.save(unfinished / "starts.npy", np.array(starts[:-1]))
                with suppress(OSError):  # another process was faster
                    unfinished.rename(folder)
        except OSError as error:
            raise UserError(f"data.cache_dir={config.cache_dir}: cannot store the text: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
            allowed = f"must have a text in the column {TEXT_COLUMN} of every record ({type(error).__name__}: {error})"
            raise OptionError("data.path", path, allowed.replace("\n", " ")) from error
    starts, size = np.load(folder / "starts.npy").tolist(), (folder / "text").stat().st_size
    whole = Part(folder / "text", alignment=ALIGNMENT[config.level])
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise([*starts, size]) if stop > start]
