"""File formats: the suffix, or `data.format`, names one, and a library reads it.

A text's contents are inspected only to refuse it. A table column is written into the cache once. A reader yields
`(number, record)` for every record: a mapping from columns to values, or the error if it cannot be read.
`tests/docs/test_data_page.py` runs every line in docs/data.md's table.
"""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import FileData
from txl_lightning.data.cache import Description, cached, checksum_once
from txl_lightning.data.ids import encode_ids
from txl_lightning.data.sources import (
    ALIGNMENT,
    BOM,
    CHUNK,
    TEXT,
    UNPACK,
    Part,
    first_bytes,
    unpacked,
)
from txl_lightning.errors import OptionError, UserError, notice, require

TEXT_SUFFIXES = """
    txt text md rst org tex bib tokens raw log srt vtt html htm xml svg css js ts jsx tsx java c h cc cpp hpp
    cu cs go rs rb php pl sh lua r jl m swift kt scala hs ml clj lisp el sql py pyi yaml yml toml ini cfg abc fasta fa
"""
FORMAT_OF = {f".{suffix}": "text" for suffix in TEXT_SUFFIXES.split()} | {
    "": "text",
    ".ndjson": "jsonl",
}
FORMATS_OF_TEXT = ("text", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
FORMATS_OF_IDS = ("npy", "bin", "raw", "jsonl", "json", "parquet", "arrow")
# First bytes that show a file is no text, and what to do.
NO_TEXT = {
    rb"version https://git-lfs\.github\.com/spec/": "a pointer of Git LFS: git lfs pull",
    rb"\xff\xfe|\xfe\xff": "UTF-16: iconv -f UTF-16 -t UTF-8 FILE",
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed: name it FILE.gz, .bz2, .xz or .zst",
    rb"(?s:.*\0)": "binary; data.level=byte data.format=text reads any bytes, data.level=ids token ids",
}
LIKE_JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')
TEXT_COLUMNS = ("text", "content")
ID_COLUMNS = ("input_ids", "ids", "tokens", "token_ids")
IDS = "ids.int32"
SEPARATORS = re.compile(r"[\s,\[]*")  # between the objects in a JSON file
LONGEST_FIELD = 1 << 30
BAD_RECORD = (ValueError, TypeError, RecursionError)
# Errors that libraries raise for a damaged file.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, csv.Error)
LACK = "lack the column"
BAD = "cannot be read"

Records = Iterator[tuple[int, Any]]


def formats_of(level: str) -> tuple[str, ...]:
    """Return the names that `data.format` may have at a level."""
    return FORMATS_OF_IDS if level == "ids" else FORMATS_OF_TEXT


def format_of(path: Path, config: FileData) -> str:
    """Return a file's format: `data.format`, else its suffix's; nothing if neither fits the level."""
    formats = formats_of(config.level)
    if config.format is not None:
        allowed = f"must be one of {', '.join(formats)}"
        require(
            config.format in formats,
            "data.format",
            config.format,
            allowed,
        )
        return config.format
    if path.suffix.lower() in UNPACK:
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    name = FORMAT_OF.get(suffix, suffix.removeprefix("."))
    return name if name in formats and name != "raw" else ""


def check_text(path: Path, config: FileData) -> bytes:
    """Refuse a file that is no text, or has records; `data.format=text` says that it is text.

    Returns:
        its first bytes.

    Raises:
        OptionError: it is no text, or `data.column` is given.
    """
    head = first_bytes(path)
    is_sure = config.format == "text"
    if not (is_sure and config.level == "byte"):
        for pattern, what in NO_TEXT.items():
            is_text = re.match(pattern, head) is None
            require(
                is_text,
                "data.path",
                path,
                f"must be a text, not {what}",
            )
    others = "data.format=jsonl or json reads its records, data.format=text its characters"
    is_text = is_sure or LIKE_JSON.match(head.removeprefix(BOM)) is None
    require(
        is_text,
        "data.path",
        path,
        f"begins like JSON; {others}",
    )
    allowed = f"must be null for {path}: it is text"
    require(
        config.column is None,
        "data.column",
        config.column,
        allowed,
    )
    return head


def read_records(path: Path, name: str, config: FileData) -> Part:
    """Write a file's records into the cache, once, and return the part that holds them; each is a document.

    Args:
        path: a file.
        name: its format.
        config: group `data`.

    Raises:
        OptionError: there is no such column, or a record cannot be read and `data.skip_bad` is off.
    """
    is_ids = config.level == "ids"
    file_name = IDS if is_ids else TEXT
    checksum = checksum_once(config.cache_dir, path)
    inputs = (checksum, name, path.suffix, config.column, is_ids, config.skip_bad)

    def write(folder: Path) -> Description:
        with (folder / file_name).open("wb") as stored:
            starts, counts = _write_records(
                path,
                name,
                config,
                stored,
            )
        np.array(starts, np.int64).tofile(folder / "starts.int64")
        return counts

    prepared = cached(config.cache_dir, inputs, write)
    for what, number in prepared.description.items():
        if number:
            notice(f"{path}: {number:,} records {what}; left out")
    return Part(
        prepared.folder / file_name,
        alignment=ALIGNMENT[config.level],
        format="int32" if is_ids else "plain",
        starts=prepared.arrays["starts"],
    )


def _write_records(
    path: Path, name: str, config: FileData, stored: Any
) -> tuple[array[int], dict[str, int]]:
    """Write a file's records; return the bytes or ids where each begins, and how many are left out."""
    unit = "line" if name == "jsonl" else "record"
    is_ids = config.level == "ids"
    starts = array("q")
    counts = {LACK: 0, BAD: 0}
    size = 0
    number = 0
    try:
        for number, value in read_column(path, name, config):
            if value is None:
                counts[LACK] += 1
                continue
            try:
                if isinstance(value, Exception):
                    raise value
                contents = encode_ids(value) if is_ids else [_encode_text(value)]
            except BAD_RECORD as error:
                if not config.skip_bad:
                    way_on = "; data.skip_bad=true leaves such records out"
                    raise _unreadable(path, f"{unit} {number}", error, way_on) from error
                counts[BAD] += 1
                continue
            for content in contents:
                starts.append(size)
                stored.write(content)
                size += len(content)
    except UNREADABLE as error:
        if isinstance(error, UserError) or getattr(error, "errno", None):  # a full disk
            raise
        place = f"the file after {unit} {number}" if number else "the file"
        raise _unreadable(path, place, error) from error
    return starts, counts


def read_column(path: Path, name: str, config: FileData) -> Records:
    """Yield every record's number, and its value in `data.column` or the usual column.

    The value is the error for a record that cannot be read, and None for one without the column.

    Args:
        path: a file.
        name: its format.
        config: group `data`.

    Raises:
        OptionError: no record has the column.
    """
    column = ""
    columns: list[str] = []
    for number, record in READERS[name](path, config):
        value = record
        if isinstance(record, dict):
            columns = columns or list(record)
            column = column or _find_column(record, config)
            value = record.get(column)
        elif not isinstance(record, Exception):
            value = TypeError("it is not a JSON object")
        yield number, value
    if columns and not column:
        _demand_column(path, columns, config)


def _unreadable(path: Path, place: str, error: Exception, way_on: str = "") -> OptionError:
    reason = " ".join(str(error).split())[:200]
    text = f"{place} cannot be read ({type(error).__name__}: {reason}){way_on}"
    return OptionError("data.path", path, text)


def _encode_text(value: Any) -> bytes:
    """Return a text's bytes; it ends with a line break.

    Raises:
        ValueError, TypeError: it is none.
    """
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"must be a text, not {str(value)[:40]}")
    if not text.endswith("\n"):
        text += "\n"
    return text.encode()


def _find_column(columns: Iterable[str], config: FileData) -> str:
    """Return `data.column`, or the usual one, if it is among these; nothing if not."""
    candidates: tuple[str, ...] = TEXT_COLUMNS
    if config.level == "ids":
        candidates = ID_COLUMNS
    if config.column is not None:
        candidates = (config.column,)
    for candidate in candidates:
        if candidate in columns:
            return candidate
    return ""


def _demand_column(path: Path, columns: list[str], config: FileData) -> str:
    """Return `data.column`, or the usual one.

    Raises:
        OptionError: it is not among these, or several have its name.
    """
    column = _find_column(columns, config)
    allowed = f"must be a column of {path}: {', '.join(columns)}"
    require(
        columns.count(column) == 1,
        "data.column",
        config.column,
        allowed,
    )
    return column


def _json_lines(path: Path, config: FileData) -> Records:
    with unpacked(path) as file:
        for number, line in enumerate(file, 1):
            content = line.removeprefix(BOM) if number == 1 else line
            if not content.strip():
                continue
            try:
                record = json.loads(content.decode())
            except BAD_RECORD as error:
                record = error
            yield number, record


def _json(path: Path, config: FileData) -> Records:
    """Yield the objects in a JSON text: one, several, or a list; each may span several lines."""
    decoder = json.JSONDecoder()
    rest = ""
    number = 0
    n_open = 0  # lists that are not closed
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        # A long object is not read again and again.
        while chunk := text.read(max(CHUNK, len(rest))):
            rest += chunk
            at = 0
            try:
                while True:
                    separators = SEPARATORS.match(rest, at)
                    assert separators is not None
                    n_open += separators[0].count("[")
                    at = separators.end()
                    record, at = decoder.raw_decode(rest, at)
                    number += 1
                    yield number, record
            except BAD_RECORD:  # it may go on in the next chunk
                rest = rest[at:]
    if "".join(rest.split()) != "]" * n_open:
        raise ValueError(f"not JSON: {rest[:40]!r}")


def _csv(path: Path, config: FileData) -> Records:
    header, _, _ = first_bytes(path).decode(errors="replace").partition("\n")
    delimiter = max(",;\t", key=header.count)
    return _rows(
        path,
        config,
        delimiter,
        csv.QUOTE_MINIMAL,
    )


def _tsv(path: Path, config: FileData) -> Records:
    """Yield rows whose fields are divided by tabs; quotes are ordinary characters."""
    return _rows(
        path,
        config,
        "\t",
        csv.QUOTE_NONE,
    )


def _rows(path: Path, config: FileData, delimiter: str, quoting: Any) -> Records:
    csv.field_size_limit(LONGEST_FIELD)
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.DictReader(
            text,
            delimiter=delimiter,
            quoting=quoting,
            strict=True,
        )
        names = list(rows.fieldnames or ())
        _demand_column(path, names, config)
        for number, row in enumerate(rows, 1):
            record: Any = row
            if None in row or None in row.values():
                record = ValueError(f"it does not have the header's {len(names)} fields")
            yield number, record


def _parquet(path: Path, config: FileData) -> Records:
    import pyarrow.parquet  # comes with `datasets`; few need it

    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        name = _demand_column(path, file.schema_arrow.names, config)
        yield from _rows_of_batches(file.iter_batches(columns=[name]), name)


def _arrow(path: Path, config: FileData) -> Records:
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            opened = pyarrow.ipc.open_file(file)
            batches: Iterable[Any] = map(opened.get_batch, range(opened.num_record_batches))
        else:
            opened = pyarrow.ipc.open_stream(file)
            batches = opened
        name = _demand_column(path, opened.schema.names, config)
        yield from _rows_of_batches(batches, name)


def _rows_of_batches(batches: Iterable[Any], name: str) -> Records:
    number = 0
    for batch in batches:
        for value in batch.column(name).to_pylist():
            number += 1
            yield number, {name: value}


READERS: dict[str, Callable[[Path, FileData], Records]] = {
    "jsonl": _json_lines,
    "json": _json,
    "csv": _csv,
    "tsv": _tsv,
    "parquet": _parquet,
    "arrow": _arrow,
}
