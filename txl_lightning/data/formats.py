"""Formats of files: the suffix, or `data.format`, names one, and a library reads it. Nothing is guessed.

A reader of records yields `(number, value)` of one column for every record; the value of a record that cannot be read
is the error. `tests/docs/test_data_page.py` runs every line of the table in docs/data.md.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.sources import CHUNK_BYTES, UNPACK, first_bytes, unpacked
from txl_lightning.errors import OptionError, require

BOM = b"\xef\xbb\xbf"
TEXT_COLUMNS = ("text", "content")
ID_COLUMNS = ("input_ids", "ids", "tokens", "token_ids")
TEXT_SUFFIXES = """
    txt text md rst org tex bib tokens raw log srt vtt html htm xml svg css js ts jsx tsx java c h cc cpp hpp
    cu cs go rs rb php pl sh lua r jl m swift kt scala hs ml clj lisp el sql py pyi yaml yml toml ini cfg abc fasta fa
"""
FORMAT_OF = {f".{suffix}": "text" for suffix in TEXT_SUFFIXES.split()}
FORMAT_OF |= {
    "": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
FORMAT_OF |= {".parquet": "parquet", ".arrow": "arrow", ".npy": "npy", ".bin": "bin"}
FORMATS_OF_TEXT = ("text", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
FORMATS_OF_IDS = ("npy", "bin", "raw", "jsonl", "json", "parquet", "arrow")
LIKE_JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')
GIT_LFS = b"version https://git-lfs.github.com/spec/"
SEPARATORS = re.compile(r"[\s,\[]*")  # between the objects of a JSON file
BAD_RECORD = (ValueError, TypeError, RecursionError)

Values = Iterator[tuple[int, Any]]


def format_of(path: Path, config: FileData) -> str:
    """Return the format of a file: `data.format`, else that of its suffix; nothing if neither is one of the level."""
    allowed = FORMATS_OF_IDS if config.level == "ids" else FORMATS_OF_TEXT
    if config.format is not None:
        require(
            config.format in allowed,
            "data.format",
            config.format,
            f"must be one of {', '.join(allowed)}",
        )
        return config.format
    plain = path.with_suffix("") if path.suffix.lower() in UNPACK else path
    name = FORMAT_OF.get(plain.suffix.lower(), "")
    return name if name in allowed else ""


def refuse_format(path: Path, config: FileData) -> OptionError:
    """Return the error for a file whose format is not known."""
    allowed = FORMATS_OF_IDS if config.level == "ids" else FORMATS_OF_TEXT
    what = "ids" if config.level == "ids" else "text"
    suffix = path.suffix or "none"
    reason = f"has no suffix that names a format of {what} ({suffix}); data.format={' or '.join(allowed)} if it is one"
    return OptionError("data.path", str(path), reason)


def check_text(path: Path, config: FileData) -> None:
    """Refuse a file that is no text, or has records; `data.format=text` says that it is text.

    Raises:
        OptionError: it is.
    """
    head = first_bytes(path)
    said = config.format == "text"
    if head.startswith(GIT_LFS):
        raise OptionError(
            "data.path", str(path), "must be a text, not a pointer of Git LFS: git lfs pull"
        )
    if b"\0" in head and not (said and config.level == "byte"):
        others = "data.level=byte data.format=text reads any bytes, data.level=ids token ids"
        raise OptionError("data.path", str(path), f"must be a text, not binary; {others}")
    if LIKE_JSON.match(head.removeprefix(BOM)) and not said:
        others = "data.format=jsonl or json reads its records, data.format=text its characters"
        raise OptionError("data.path", str(path), f"begins like JSON; {others}")


@dataclass
class Column:
    """Column of records that is read: `data.column`, or the usual one, at the first record that has it.

    Args:
        path: file of the records, for errors.
        wanted: `data.column`.
        usual: names to look for without it.
        name: the column, once it is found.
    """

    path: Path
    wanted: str | None
    usual: tuple[str, ...]
    name: str = ""

    def find(self, names: Iterable[Any]) -> str:
        """Return the column if it is found already, or is among these names; nothing if not."""
        if not self.name:
            candidates = self.usual if self.wanted is None else (self.wanted,)
            for candidate in candidates:
                if candidate in names:
                    self.name = candidate
                    break
        return self.name

    def demand(self, names: Iterable[Any]) -> str:
        """Return the column.

        Raises:
            OptionError: it is not among these names.
        """
        allowed = f"must be a column of {self.path}: {', '.join(map(str, names))}"
        require(self.find(names) != "", "data.column", self.wanted, allowed)
        return self.name


def _lines(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(BOM)
        if line.strip():
            yield number, line


def _json_lines(path: Path, column: Column) -> Values:
    with unpacked(path) as file:
        yield from _values_of_objects(_parsed_lines(file), column)


def _parsed_lines(file: Iterable[bytes]) -> Values:
    for number, line in _lines(file):
        try:
            record = json.loads(line.decode())
        except BAD_RECORD as error:
            record = error
        yield number, record


def _json(path: Path, column: Column) -> Values:
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        yield from _values_of_objects(_objects(text), column)


def _objects(text: Any) -> Values:
    """Yield the objects of a JSON text: one, several, or a list; each may go on over many lines."""
    decoder = json.JSONDecoder()
    rest = ""
    number = 1
    while chunk := text.read(
        max(CHUNK_BYTES, len(rest))
    ):  # a long object is not read again and again
        rest += chunk
        at = 0
        while True:
            at = SEPARATORS.match(rest, at).end()  # type: ignore[union-attr]
            try:
                record, at = decoder.raw_decode(rest, at)
            except BAD_RECORD:  # it may go on in the next chunk
                break
            yield number, record
            number += 1
        rest = rest[at:]
    if rest.strip().strip("]"):
        yield number, ValueError(f"no JSON: {rest[:40]!r}")


def _values_of_objects(records: Values, column: Column) -> Values:
    names: list[str] = []
    for number, record in records:
        if isinstance(record, Exception):
            yield number, record
        elif not isinstance(record, dict):
            yield number, TypeError("it is no object")
        else:
            names = names or list(record)
            yield number, record.get(column.find(record))
    if names and not column.name:
        column.demand(names)


def _csv(path: Path, column: Column) -> Values:
    csv.field_size_limit(1 << 30)
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        header = text.readline()
        delimiter = max(",;\t", key=header.count)
        (names,) = csv.reader([header], delimiter=delimiter, strict=True)
        place = names.index(column.demand(names))
        for number, row in enumerate(csv.reader(text, delimiter=delimiter, strict=True), 1):
            if row:
                yield number, _field(row, place, len(names))


def _tsv(path: Path, column: Column) -> Values:
    """Read lines whose fields are divided by tabs; quotes are characters like others."""
    names: list[str] = []
    place = 0
    with unpacked(path) as file:
        for number, line in _lines(file):
            try:
                row = line.decode().rstrip("\r\n").split("\t")
            except UnicodeDecodeError as error:
                yield number, error
                continue
            if names:
                yield number, _field(row, place, len(names))
            else:
                names = row
                place = names.index(column.demand(names))


def _field(row: list[str], place: int, n_fields: int) -> str | ValueError:
    if len(row) != n_fields:
        return ValueError(f"{len(row)} fields, the header has {n_fields}")
    return row[place]


def _parquet(path: Path, column: Column) -> Values:
    import pyarrow.parquet  # comes with `datasets`; few need it

    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        name = column.demand(file.schema_arrow.names)
        yield from enumerate(_values_of_batches(file.iter_batches(columns=[name]), name), 1)


def _arrow(path: Path, column: Column) -> Values:
    import pyarrow

    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"
    with pyarrow.memory_map(str(path)) as mapped:
        if is_stream:
            opened = pyarrow.ipc.open_stream(mapped)
            batches: Iterable[Any] = opened
        else:
            opened = pyarrow.ipc.open_file(mapped)
            batches = map(opened.get_batch, range(opened.num_record_batches))
        name = column.demand(opened.schema.names)
        yield from enumerate(_values_of_batches(batches, name), 1)


def _values_of_batches(batches: Iterable[Any], name: str) -> Iterator[Any]:
    import pyarrow

    for batch in batches:
        values = batch.column(name)
        is_list = pyarrow.types.is_list(values.type) or pyarrow.types.is_large_list(values.type)
        if not is_list or values.null_count or not pyarrow.types.is_integer(values.type.value_type):
            yield from values.to_pylist()
            continue
        ids = values.flatten()
        if ids.null_count:
            yield from values.to_pylist()
            continue
        lengths = values.value_lengths().to_numpy()
        yield from np.split(ids.to_numpy(), np.cumsum(lengths)[:-1])


READERS: dict[str, Callable[[Path, Column], Values]] = {
    "jsonl": _json_lines,
    "json": _json,
    "csv": _csv,
    "tsv": _tsv,
    "parquet": _parquet,
    "arrow": _arrow,
}
