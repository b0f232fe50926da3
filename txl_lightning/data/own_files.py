"""Files of the user: which of them are splits, and what they hold: text, records of text, or token ids."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.sources import (
    ALIGNMENT,
    COMPRESSIONS,
    HEAD_BYTES,
    SPLITS,
    WHOLE,
    Part,
    Source,
    cache_key,
    cached,
    cut_file,
    cut_parts,
    first_bytes,
    mapped,
    open_vocabulary,
)
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, notice, require
from txl_lightning.files import expand, file_checksum, not_special

SPLIT_NAMES = {
    "train": r"train(?:ing|set|data)?",
    "valid": r"val|valid(?:ation|set)?|dev(?:el|elopment|set)?|eval(?:uation)?|held-?out",
    "test": r"test(?:ing|set|data)?",
}
HINT = "name the splits: 'data.path={train:PATH,valid:PATH,test:PATH}', without valid and test they are cut from train"
TEXT_COLUMN = "text"
RECORDS = (".jsonl", ".ndjson")  # by name: they are text too
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
FIRST_BYTES = {
    "compressed": tuple(COMPRESSIONS),
    "Parquet": (b"PAR1",),
    "NumPy": (b"\x93NUMPY",),
    "an archive": (b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x04\x22\x4d\x18"),
    "binary": (b"%PDF-", b"{\\rtf", b"\x7fELF", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"%!PS"),
}
RAW_DTYPES = ("uint16", "uint32", "int32")
TEXT_OF_IDS = b"0123456789 \t\r\n,;[]-"  # of which numbers in JSON or a text consist
NOT_RAW = re.compile(r"\.(txt|jsonl?|[ct]sv|pkl|pickle|pth?|npz|parquet|safetensors)")
IDS_AT_ONCE = 1 << 22
FEW_IDS = 1 << 16  # a vocabulary of this size needs no further ids
Files = dict[str, list[Path]]  # by split, or under "" if they are joined and cut


def file(config: FileData, whole: bool = False) -> Source:
    """Files of the user: text, or token ids at level ids.

    `data.path` is a file, a folder, a list of both, or a mapping of splits to these. Files whose names say train, valid
    (val, dev, …) or test are these splits (see `_by_name`). A split that is missing is cut from the end of train; other
    files are joined in the order of their paths and cut by `data.fractions`. A cut is never inside a character or, for
    words, a line.

    Every file is a document, and every record of JSON lines and Parquet, of which the column `text` is read. A
    document that a cut goes through continues as the first one of the next split. Nothing is put between documents,
    but a line break at the end of a record. In a vocabulary with `<S>`, that of a model of lm1b, every line is a
    sentence as in lm1b.

    Args:
        config: group `data`.
        whole: all files are one split, `WHOLE`.

    Raises:
        OptionError: a path cannot be used: missing, empty, not readable, no text, or partly splits.
    """
    fractions, ids = list(config.fractions), config.level == "ids"
    good = len(fractions) == 3 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6
    require(good, "data.fractions", fractions, "must be three positive numbers (train, valid, test) with sum 1")
    name, files = _files(config.path, ids, not whole)
    of_file = _ids if ids else _documents
    parts = {split: [part for path in paths for part in of_file(path, config)] for split, paths in files.items()}
    for split, found in parts.items():
        of_split = f" in {', '.join(path.name for path in files[split])}" if split else ""
        have = "ids: it is empty, or a folder without .npy files" if ids else "text: it is empty"
        require(bool(found), "data.path", config.path, f"must have {have}{of_split}")
    if whole:
        parts = {WHOLE: [part for of_split in parts.values() for part in of_split]}
    elif missing := [split for split in SPLITS if split not in files]:
        joined = parts.pop("", None) or parts["train"]
        if len(missing) == 3 and not ids and joined == [plain := Part(joined[0].path, alignment=joined[0].alignment)]:
            cut = cut_file(plain.path, fractions, plain.alignment)
        else:
            shares = np.array([n * (split in (*missing, "train")) for split, n in zip(SPLITS, fractions, strict=True)])
            cut = cut_parts(joined, list(map(_size, joined)), (shares / shares.sum()).tolist())
        parts |= {split: cut[split] for split in {"train", *missing}}
        if len({part.path for part in joined}) > 1 or "" not in files:
            sizes = ", ".join(f"{split} {sum(map(_size, parts[split])):,}" for split in SPLITS)
            verb = "joined and cut" if "" in files else f"{' and '.join(missing)} cut from the end of train"
            notice(f"data.path={name}: {verb}, {'ids' if ids else 'bytes'} of each split: {sizes}")
    parts = {split: parts[split] for split in (SPLITS if not whole else (WHOLE,))}
    return Source(name, parts, open_vocabulary(config))


def _size(part: Part) -> int:
    """Return the number of bytes or ids of a part; its start and stop are not fractions."""
    if part.stop is not None:
        return int(part.stop - part.start)
    if part.format != "plain":
        return len(ids_of(part))
    with mapped(part.path) as text:
        return len(text) - int(part.start)


def _files(given: Any, ids: bool, splits: bool = True) -> tuple[str, Files]:
    """Return a name for the files of `data.path`, and those that are not empty, by split, or joined if `splits` is off.

    Three paths at level ids are train, valid and test.
    """
    allowed = "must be a file, a folder, a list of these or a mapping of train, valid and test to them (data.path=PATH)"
    if ids and isinstance(given, list) and len(given) == 3:
        given = dict(zip(SPLITS, given, strict=True))
    if isinstance(given, Mapping):
        require("train" in given and set(given) <= set(SPLITS), "data.path", dict(given), allowed)
        named = {split: _files(path, ids, splits=False) for split, path in given.items()}
        return named["train"][0], {split: files[""] for split, (_, files) in named.items()}
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    require(bool(listed) and all(isinstance(path, str) and path for path in listed), "data.path", given, allowed)
    try:
        roots = [not_special(path) for path in listed]
        found = {path for root in roots for path in (_files_of_folder(root, ids) if root.is_dir() else [root])}
        sizes = {path: size for path in sorted(found) if (size := path.stat().st_size)}
        for path in sizes:
            path.open("rb").close()
    except OSError as error:
        which = f"{error.filename} " if str(error.filename) != given else ""
        raise OptionError("data.path", given, f"{which}cannot be read ({error.strerror})") from error
    require(bool(sizes), "data.path", given, "must not be empty" if not ids else "must have ids: it is empty")
    name = roots[0].name or roots[0].resolve().name
    name += f" and {len(sizes) - 1} more" if len(roots) > 1 and len(sizes) > 1 else ""
    if len(sizes) == 1 or not splits:
        return name, {"": list(sizes)}
    base = roots[0] if len(roots) == 1 else Path(os.path.commonpath([root.absolute().parent for root in roots]))
    return name, _by_name(sizes, base.absolute(), given, len(roots) == 1)


def _by_name(sizes: Mapping[Path, int], base: Path, given: Any, is_folder: bool) -> Files:
    """Return files by the splits that their names below a folder say, or all joined under "" if they say none.

    Files are splits if one is train and another valid or test. Of a folder, the files that are no split are left out if
    they are smaller in all: a README beside the data. If they are larger, as in a folder of code, all are joined.

    Raises:
        OptionError: some files of a list are splits and others are not.
    """
    found: Files = {}
    for path in sizes:
        name = path.absolute().relative_to(base).as_posix()
        words = SPLIT_NAMES.items()
        says = [split for split, word in words if re.search(rf"(?<![a-z])(?:{word})(?![a-z])", name, re.IGNORECASE)]
        found.setdefault(says[0] if len(says) == 1 else "", []).append(path)
    others = found.pop("", [])
    larger = sum(map(sizes.__getitem__, others)) > sum(sizes.values()) / 2
    if not {"valid", "test"} & set(found) or (is_folder and (larger or "train" not in found)):
        return {"": list(sizes)}
    mixed = f"has files that are splits and {others[0].name}, which is none; {HINT}" if others else HINT
    require(is_folder or ("train" in found and not others), "data.path", given, mixed)
    if others:
        notice(f"data.path={given}: the names of {_few(others)} say no split; left out")
    return found


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
        return npy or (files if len(files) == 1 else [path for path in files if path.suffix == ".bin"])
    files = sorted(path for path in files if path.is_file())
    texts = [path for path in files if kind_of(first_bytes(path)) in ("text", "compressed", "Parquet")]
    if others := [path for path in files if path not in set(texts)]:
        notice(f"data.path={root}: {_few(others)}: no text; left out")
    return texts


def kind_of(head: bytes) -> str:
    """Return what a file is by its first bytes: text, compressed, Parquet, NumPy, an archive or binary.

    Binary is also what holds a byte 0.
    """
    for kind, firsts in FIRST_BYTES.items():
        if head.startswith(firsts):
            return kind
    if head[257:262] == b"ustar":
        return "an archive"
    return "binary" if b"\0" in head else "text"


def _documents(path: Path, config: FileData) -> list[Part]:
    """Return the documents of a file of text, or of records.

    Raises:
        OptionError: it is neither.
    """
    suffix = next(suffix for suffix in [*reversed(path.suffixes), ""] if suffix not in COMPRESSED).lower()
    alignment = ALIGNMENT[config.level]
    with mapped(path) as text:
        kind = kind_of(head := bytes(text[:HEAD_BYTES]))
        require(kind != "NumPy", "data.level", config.level, f"must be ids for {path}: it holds an array, no text")
        if kind == "binary" and config.level == "byte":
            notice(f"data.path={path}: not a text; its bytes are read as they are")
        elif kind not in ("text", "Parquet"):
            hint = {"an archive": "; unpack it", "binary": "; data.level=byte reads any bytes"}.get(kind, "")
            raise OptionError("data.path", path, f"must be a text, not {kind}{hint}")
        if kind != "Parquet" and suffix not in RECORDS:
            return [Part(path, len(codecs.BOM_UTF8) * head.startswith(codecs.BOM_UTF8), alignment=alignment)]
        texts = _parquet(path) if kind == "Parquet" else _json_lines(text)
        directory, key = expand(config.cache_dir), cache_key(file_checksum(path), "records")
        try:
            arrays, _ = cached(directory, key, lambda folder: _store(texts, folder))
        except (ValueError, LookupError, TypeError) as error:
            allowed = f"must have a text in the column {TEXT_COLUMN} of every record ({type(error).__name__}: {error})"
            raise OptionError("data.path", path, allowed.replace("\n", " ")) from error
    whole, ends = Part(directory / key / "text.uint8", alignment=alignment), arrays["ends"].tolist()
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(ends) if stop > start]


def _json_lines(content: Any) -> Iterator[Any]:
    for line in content[:].decode("utf-8-sig").split("\n"):
        if line.strip():
            yield json.loads(line)[TEXT_COLUMN]


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as parquet  # comes with `datasets`; few need it

    for batch in parquet.ParquetFile(path).iter_batches(columns=[TEXT_COLUMN]):
        yield from batch.column(0).to_pylist()


def _store(texts: Iterator[Any], folder: Path) -> dict[str, Any]:
    """Write the texts of records as UTF-8, and where each one ends."""
    ends = [0]
    with (folder / "text.uint8").open("wb") as file:
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"one is {text}"[:200])
            ends.append(ends[-1] + file.write(f"{text.removesuffix(chr(10))}\n".encode()))
    if len(ends) == 1:
        raise LookupError("there is none")
    np.array(ends).tofile(folder / "ends.int64")
    return {}


def _ids(path: Path, config: FileData) -> list[Part]:
    ids = map_ids(path, config.dtype)  # closed at the next one: a process has few open files
    shape = f"must have one dimension, not the shape {ids.shape}: save ids.ravel()"
    require(ids.ndim == 1, "data.path", path, shape)
    return [Part(path, format=ids.dtype.name)] if len(ids) else []


def map_ids(path: Path, dtype: str | None = None, option: str = "data.path") -> np.ndarray:
    """Return the ids of a file, memory-mapped.

    Args:
        path: a `.npy` file, or a raw one.
        dtype: type of the ids in a raw file.
        option: option that gave the path, for errors.

    Raises:
        OptionError: the file cannot be read, or has other contents than integers.
    """
    try:
        kind = kind_of(head := first_bytes(path))
        if path.suffix == ".npy" or kind == "NumPy":
            ids = np.load(path, mmap_mode="r")
        else:
            held = "digits of a text" if not head.translate(None, TEXT_OF_IDS) else kind
            raw = held in ("text", "binary") and not NOT_RAW.fullmatch(path.suffix)
            allowed = f"must be a .npy file or raw ids, not {held}: save it with numpy.save"
            require(raw or not head, option, path, allowed)
            allowed = f"must be {', '.join(RAW_DTYPES)} for {path.name}: only a .npy file states the type of its ids"
            require(dtype in RAW_DTYPES, "data.dtype", dtype, allowed)
            ids = np.memmap(path, str(dtype), mode="r")
    except OptionError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(option, path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    found = getattr(ids, "dtype", None)  # none of a .npz file
    require(found is not None and found.kind in "iu", option, path, f"must hold an array of integers, not {found}")
    return ids


def ids_of(part: Part) -> np.ndarray:
    """Return the ids of a part of a file, memory-mapped."""
    return map_ids(part.path, part.format)[part.start : part.stop]


def chunks_of_ids(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array in pieces that fit into memory."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def vocabulary_of_ids(config: FileData, source: Source, checksum: str, given: Vocabulary | None) -> Vocabulary:
    """Return the given vocabulary, or one of `data.vocab_size` ids, else of `data.names`, else up to the largest id.

    An id without a name is shown as its number. The range of the ids is cached.

    Raises:
        OptionError: an id is negative or too large, `data.names` cannot be read, or `data.vocab_size` is not possible.
    """

    def measure(_: Path) -> dict[str, int]:
        parts = [part for of_split in source.parts.values() for part in of_split]
        ranges = [(len(ids), int(ids.min()), int(ids.max())) for part in parts for ids in chunks_of_ids(ids_of(part))]
        counts, lowest, highest = zip(*ranges, strict=True)
        return {"number": sum(counts), "smallest": min(lowest), "largest": max(highest)}

    _, found = cached(expand(config.cache_dir), cache_key(checksum, "range of ids"), measure)
    smallest, largest, n_ids = found["smallest"], found["largest"], found["number"]
    require(smallest >= 0, "data.path", config.path, f"has the negative id {smallest}")
    vocabulary = given
    if vocabulary is None:
        if config.vocab_size is None:  # such ids may be halves or pairs of others
            allowed = f"must be given: the largest of {n_ids} ids is {largest}. Is data.dtype right?"
            require(largest < max(n_ids, FEW_IDS), "data.vocab_size", None, allowed)
        names = {} if config.names is None else _names(config.names)
        least = 1 + max(names, default=0)
        size = config.vocab_size if config.vocab_size is not None else least if names else largest + 1
        named = f", for all names of {config.names}," if names else ""
        require(least <= size < 2**31, "data.vocab_size", size, f"must be an integer >= {least}{named} and below 2^31")
        vocabulary = Vocabulary("ids", tuple(names.get(number, str(number)) for number in range(size)))
    allowed = f"has the id {largest}, the vocabulary (data.vocab_size) only ids from 0 to {len(vocabulary) - 1}"
    require(largest < len(vocabulary), "data.path", config.path, allowed)
    return vocabulary


def _names(file: str) -> dict[int, str]:
    """Return the names in a text file, one in each line, or in the `vocab.json` of a tokenizer, by id."""
    try:
        path = not_special(file)
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return dict(enumerate(text.removesuffix("\n").split("\n")))
        return {int(number): str(name) for name, number in json.loads(text).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise OptionError("data.names", file, f"must have a name in each line, or be a vocab.json ({error})") from error
