"""File formats: the suffix, or `data.format`, names one, and a library reads it.

A text's contents are inspected only to refuse it. A table column is written into the cache once. A reader yields
every record: a mapping from columns to values, or the error if it cannot be read.
`tests/docs/test_data_page.py` runs every line in docs/data.md's table.
"""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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
    reading,
    unpacked,
)
from txl_lightning.errors import check, notice, one_of, require

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
# First bytes of a file that is no text, and what to do.
RECORDS = "data.format=jsonl or json reads its records, data.format=text its characters"
BINARY = {
    rb"version https://git-lfs\.github\.com/spec/": "a pointer of Git LFS: git lfs pull",
    rb"\xff\xfe|\xfe\xff": "UTF-16: iconv -f UTF-16 -t UTF-8 FILE",
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed: name it FILE.gz, .bz2, .xz or .zst",
    rb"(?s:.*\0)": "binary; data.level=byte data.format=text reads any bytes, data.level=ids token ids",
}
LIKE_JSON = {rb'(\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"': f"JSON; {RECORDS}"}
TEXT_COLUMNS: tuple[str, ...] = ("text", "content")
ID_COLUMNS: tuple[str, ...] = ("input_ids", "ids", "tokens", "token_ids")
IDS = "ids.int32"
SEPARATORS = re.compile(r"[\s,\[]*")  # between the objects in a JSON file
LONGEST_FIELD = 1 << 30
BAD_RECORD = (ValueError, TypeError, OverflowError, RecursionError)
BLANK = b""  # a line in place of a record


def formats_of(level: str) -> tuple[str, ...]:
    """Return the names that `data.format` may have at a level."""
    return FORMATS_OF_IDS if level == "ids" else FORMATS_OF_TEXT


def format_of(path: Path, config: FileData) -> str:
    """Return a file's format: `data.format`, else its suffix's; nothing if neither fits the level."""
    formats = formats_of(config.level)
    check("data.format", config.format, one_of(*formats))
    if config.format is not None:
        return config.format
    if path.suffix.lower() in UNPACK:
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    name = FORMAT_OF.get(suffix, suffix[1:])
    return name if name in formats and name != "raw" else ""


def check_text(path: Path, config: FileData) -> int:
    """Refuse a file that is no text, or has records; `data.format=text` says that it is text.

    Returns:
        number of bytes in its encoding mark.

    Raises:
        OptionError: it is no text, or `data.column` is given.
    """
    head = first_bytes(path)
    refused = BINARY | LIKE_JSON
    if config.format == "text":
        refused = {} if config.level == "byte" else BINARY
    for pattern, what in refused.items():
        require(
            re.match(pattern, head) is None,
            "data.path",
            path,
            f"must be a text, not {what}",
        )
    require(
        config.column is None,
        "data.column",
        config.column,
        f"must be null for {path}: it is text",
    )
    return len(BOM) * head.startswith(BOM)


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
            starts, left_out = _write_records(path, name, config, stored)
        (folder / "starts.int64").write_bytes(starts)
        return left_out

    prepared = cached(config.cache_dir, inputs, write)
    for what, number in prepared.description.items():
        notice(f"{path}: {number:,} records {what}; left out")
    return Part(
        prepared.folder / file_name,
        alignment=ALIGNMENT[config.level],
        format="int32" if is_ids else "plain",
        starts=prepared.arrays["starts"],
    )


def _write_records(
    path: Path, name: str, config: FileData, stored: Any
) -> tuple[array[int], Counter[str]]:
    """Write a file's records; return the bytes or ids where each begins, and how many are left out."""
    unit = "line" if name == "jsonl" else "record"
    encode = encode_ids if config.level == "ids" else _encode_text
    starts = array("q")
    left_out: Counter[str] = Counter()
    size = 0
    for number, value in read_column(path, name, config):
        if value is None:
            left_out["lack the column"] += 1
            continue
        try:
            if isinstance(value, Exception):
                raise value
            contents = encode(value)
        except BAD_RECORD as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            require(
                config.skip_bad,
                "data.path",
                path,
                f"{unit} {number} cannot be read ({reason}); data.skip_bad=true leaves it out",
            )
            left_out["cannot be read"] += 1
            continue
        for content in contents:
            starts.append(size)
            stored.write(content)
            size += len(content)
    return starts, left_out


def read_column(path: Path, name: str, config: FileData) -> Iterator[tuple[int, Any]]:
    """Yield every record's number, and its value in `data.column` or the usual column.

    The value is the error for a record that cannot be read, and None for one without the column.

    Args:
        path: a file.
        name: its format.
        config: group `data`.

    Raises:
        OptionError: no record has the column.
    """
    columns: list[str] = []
    chosen: list[str] = []
    for number, record in enumerate(READERS[name](path, config), 1):
        value = record
        if record == BLANK:
            continue
        if isinstance(record, dict):
            columns = columns or [*record]
            chosen = chosen or _choose_columns(record, config)
            value = record.get(chosen[0]) if chosen else None
        elif not isinstance(record, Exception):
            value = TypeError("it is not a JSON object")
        yield number, value
    allowed = f"must be a column of {path}: {', '.join(columns)}"
    require(
        columns == [] or chosen != [],
        "data.column",
        config.column,
        allowed,
    )


def _encode_text(value: Any) -> list[bytes]:
    """Return a text's bytes; it ends with a line break.

    Raises:
        ValueError, TypeError: it is none.
    """
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"must be a text, not {str(value)[:40]}")
    return [(text.removesuffix("\n") + "\n").encode()]


def _choose_columns(columns: Iterable[str], config: FileData) -> list[str]:
    """Return `data.column`, or the usual ones, if they are among these."""
    usual = ID_COLUMNS if config.level == "ids" else TEXT_COLUMNS
    candidates = (config.column,) if config.column else usual
    return [name for name in candidates if name in columns]


def _json_lines(path: Path, config: FileData) -> Iterator[Any]:
    with unpacked(path) as file:
        for line in file:
            try:
                yield json.loads(line) if line.strip() else BLANK
            except BAD_RECORD as error:
                yield error


def _json(path: Path, config: FileData) -> Iterator[Any]:
    """Yield the objects in a JSON text: one, several, or a list; each may span several lines."""
    decoder = json.JSONDecoder()
    rest = ""
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
                    yield record
            except BAD_RECORD:  # it may go on in the next chunk
                rest = rest[at:]
        if "".join(rest.split()) != "]" * n_open:
            raise ValueError(f"not JSON: {rest[:40]!r}")


def _csv(path: Path, config: FileData) -> Iterator[Any]:
    """Yield rows under a header; in `.tsv` the delimiter is the tab, and quotes are characters like others."""
    header, _, _ = first_bytes(path).decode(errors="replace").partition("\n")
    csv.field_size_limit(LONGEST_FIELD)
    dialect: dict[str, Any] = {
        "delimiter": max(
            ",;\t",
            key=header.count,
        ),
        "strict": True,
    }
    if format_of(path, config) == "tsv":
        dialect.update(delimiter="\t", quoting=csv.QUOTE_NONE)
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.DictReader(text, **dialect)
        names = [*(rows.fieldnames or ())]
        for name in _choose_columns(names, config):
            allowed = f"must be one column of {path}: {', '.join(names)}"
            require(names.count(name) == 1, "data.column", config.column, allowed)
        try:
            for row in rows:
                if None in row or None in row.values():
                    yield ValueError("it does not have the fields of the header")
                else:
                    yield row
        except csv.Error as error:
            raise ValueError(f"after line {rows.line_num}: {error}") from error


def _parquet(path: Path, config: FileData) -> Iterator[Any]:
    import pyarrow.parquet  # comes with `datasets`; few need it

    with reading(path), pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        columns = _choose_columns(file.schema_arrow.names, config) or None
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()


def _arrow(path: Path, config: FileData) -> Iterator[Any]:
    import pyarrow

    with reading(path), pyarrow.memory_map(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        opened = pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
        table = opened.read_all()
        columns = _choose_columns(table.column_names, config) or table.column_names
        for batch in table.select(columns).to_batches():
            yield from batch.to_pylist()


READERS: dict[str, Callable[[Path, FileData], Iterator[Any]]] = {
    "jsonl": _json_lines,
    "json": _json,
    "csv": _csv,
    "tsv": _csv,
    "parquet": _parquet,
    "arrow": _arrow,
}
