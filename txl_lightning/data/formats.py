"""Formats of files: the suffix, or `data.format`, names one, and a library reads it. Nothing is guessed.

A reader yields `(number, record)` for every record: a mapping of columns to values, or the error of one that cannot be
read. `tests/docs/test_data_page.py` runs every line of the table in docs/data.md.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import FileData
from txl_lightning.data.sources import BOM, CHUNK_BYTES, UNPACK, first_bytes, unpacked
from txl_lightning.errors import OptionError, require

TEXT_COLUMNS = ("text", "content")
ID_COLUMNS = ("input_ids", "ids", "tokens", "token_ids")
TEXT_SUFFIXES = """
    txt text md rst org tex bib tokens raw log srt vtt html htm xml svg css js ts jsx tsx java c h cc cpp hpp
    cu cs go rs rb php pl sh lua r jl m swift kt scala hs ml clj lisp el sql py pyi yaml yml toml ini cfg abc fasta fa
"""
FORMAT_OF = {f".{suffix}": "text" for suffix in TEXT_SUFFIXES.split()} | {"": "text"}
FORMAT_OF |= {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
FORMAT_OF |= {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".npy": "npy",
    ".bin": "bin",
}
FORMATS_OF_TEXT = ("text", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
FORMATS_OF_IDS = ("npy", "bin", "raw", "jsonl", "json", "parquet", "arrow")
LIKE_JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')
GIT_LFS = b"version https://git-lfs.github.com/spec/"
SEPARATORS = re.compile(r"[\s,\[]*")  # between the objects of a JSON file
BAD_RECORD = (ValueError, TypeError, RecursionError)

Records = Iterator[tuple[int, Any]]


def format_of(path: Path, config: FileData) -> str:
    """Return the format of a file: `data.format`, else its suffix's; nothing if neither is one of the level."""
    allowed = FORMATS_OF_IDS if config.level == "ids" else FORMATS_OF_TEXT
    if config.format is not None:
        choices = f"must be one of {', '.join(allowed)}"
        require(
            config.format in allowed,
            "data.format",
            config.format,
            choices,
        )
        return config.format
    if path.suffix.lower() in UNPACK:
        path = path.with_suffix("")
    name = FORMAT_OF.get(path.suffix.lower(), "")
    return name if name in allowed else ""


def refuse_format(path: Path, config: FileData) -> OptionError:
    """Return the error for a file whose format is not known."""
    what = "text"
    allowed = FORMATS_OF_TEXT
    if config.level == "ids":
        what = "ids"
        allowed = FORMATS_OF_IDS
    reason = f"has no suffix that names a format of {what}; data.format={' or '.join(allowed)} if it is one"
    return OptionError("data.path", path, reason)


def check_text(path: Path, config: FileData) -> None:
    """Refuse a file that is no text, or has records; `data.format=text` says that it is text.

    Raises:
        OptionError: it is.
    """
    head = first_bytes(path)
    reason = ""
    if head.startswith(GIT_LFS):
        reason = "must be a text, not a pointer of Git LFS: git lfs pull"
    elif b"\0" in head and not (config.format == "text" and config.level == "byte"):
        others = "data.level=byte data.format=text reads any bytes, data.level=ids token ids"
        reason = f"must be a text, not binary; {others}"
    elif LIKE_JSON.match(head.removeprefix(BOM)) and config.format != "text":
        others = "data.format=jsonl or json reads its records, data.format=text its characters"
        reason = f"begins like JSON; {others}"
    require(not reason, "data.path", path, reason)
    allowed = f"must be null for {path}: it is text"
    require(
        config.column is None,
        "data.column",
        config.column,
        allowed,
    )


def read_column(path: Path, name: str, config: FileData) -> Records:
    """Yield the number of every record of a file, and its value in `data.column` or the usual column.

    The value of a record that cannot be read is the error.

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
        if isinstance(record, Exception):
            yield number, record
        elif not isinstance(record, dict):
            yield number, TypeError("it is no object")
        else:
            columns = columns or list(record)
            column = column or find_column(record, config)
            yield number, record.get(column)
    if columns and not column:
        demand_column(path, columns, config)


def find_column(columns: Iterable[str], config: FileData) -> str:
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


def demand_column(path: Path, columns: Iterable[str], config: FileData) -> str:
    """Return `data.column`, or the usual one.

    Raises:
        OptionError: it is not among these.
    """
    column = find_column(columns, config)
    allowed = f"must be a column of {path}: {', '.join(columns)}"
    require(column != "", "data.column", config.column, allowed)
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
    """Yield the objects of a JSON text: one, several, or a list; each may go on over many lines."""
    decoder = json.JSONDecoder()
    rest = ""
    number = 0
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        # A long object is not read again and again.
        while chunk := text.read(max(CHUNK_BYTES, len(rest))):
            rest += chunk
            at = 0
            try:
                while True:
                    at = SEPARATORS.match(rest, at).end()  # type: ignore[union-attr]
                    record, at = decoder.raw_decode(rest, at)
                    number += 1
                    yield number, record
            except BAD_RECORD:  # it may go on in the next chunk
                rest = rest[at:]
    if rest.strip().strip("]"):
        yield number + 1, ValueError(f"no JSON: {rest[:40]!r}")


def _csv(path: Path, config: FileData) -> Records:
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        header = text.readline()
        delimiter = max(",;\t", key=header.count)
        names = next(
            csv.reader(
                [header],
                delimiter=delimiter,
                strict=True,
            )
        )
        rows = csv.DictReader(
            text,
            names,
            delimiter=delimiter,
            strict=True,
        )
        yield from _checked_rows(path, rows, config)


def _tsv(path: Path, config: FileData) -> Records:
    """Yield rows whose fields are divided by tabs; quotes are characters like others."""
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.DictReader(
            text,
            delimiter="\t",
            quoting=csv.QUOTE_NONE,
        )
        yield from _checked_rows(path, rows, config)


def _checked_rows(path: Path, rows: csv.DictReader[str], config: FileData) -> Records:
    csv.field_size_limit(1 << 30)
    names = list(rows.fieldnames or ())
    demand_column(path, names, config)
    for number, row in enumerate(rows, 1):
        record: Any = row
        if None in row or None in row.values():
            record = ValueError(f"it has not the {len(names)} fields of the header")
        yield number, record


def _parquet(path: Path, config: FileData) -> Records:
    import pyarrow.parquet  # comes with `datasets`; few need it

    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        name = demand_column(path, file.schema_arrow.names, config)
        yield from _rows_of_batches(file.iter_batches(columns=[name]), name)


def _arrow(path: Path, config: FileData) -> Records:
    import pyarrow

    with pyarrow.memory_map(str(path)) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        if is_file:
            opened = pyarrow.ipc.open_file(mapped)
            batches: Iterable[Any] = map(opened.get_batch, range(opened.num_record_batches))
        else:
            opened = pyarrow.ipc.open_stream(mapped)
            batches = opened
        name = demand_column(path, opened.schema.names, config)
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
