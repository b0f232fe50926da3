"""Formats of files that people bring: a row for each, with its signature, and what reads it or what converts it."""

from __future__ import annotations

import csv
import json
import re
import struct
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.sources import HEAD_BYTES, Part, first_bytes
from txl_lightning.errors import require
from txl_lightning.registry import load_guests

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
TEXT_COLUMNS, ID_COLUMNS = ("text", "txt", "content"), ("input_ids", "ids", "tokens", "token_ids")
# First bytes of a JSON file of records that is no JSON lines, or of one with ids (MidiTok's).
JSON_RECORDS = re.compile(
    rb'\s*\[\s*\{\s*["}]|\s*\{(?=.*"(?:' + "|".join(ID_COLUMNS).encode() + rb')"\s*:\s*\[)', re.DOTALL
)
WITH_COLUMN = re.compile(rb'\s*\{.*"(?:' + "|".join((*TEXT_COLUMNS, *ID_COLUMNS)).encode() + rb')"\s*:', re.DOTALL)
BOM = b"\xef\xbb\xbf"
TYPES_OF_INDEX = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16", 9: "uint32", 10: "uint64"}
LLM_C = {struct.pack("<i", 20240520): "uint16", struct.pack("<i", 20240801): "uint32"}  # by the first number
LLM_C_HEADER = 256 * 4
STREAMS_OF_ARROW = (".arrow", ".arrows", ".ipc")
OFFICE = (".docx", ".odt", ".epub", ".rtf", ".doc", ".pptx", ".xlsx")
OF_MDS = "numpy.save('ids', concatenate([row['tokens'] for row in StreamingDataset(local=FOLDER, batch_size=1)]))"
OF_LITDATA = "numpy.save('ids', concatenate([*StreamingDataset(FOLDER, item_loader=TokensLoader(block_size=1))]))"
FIRST_RECORDS = 100  # that show which columns there are

Columns = list[str]
Values = Callable[[str], Iterable[Any]]  # of a column, one for each record


@dataclass(frozen=True)
class Format:
    """Kind of files: how they are known, and what is read of them; of one with a hint, how to convert it.

    Args:
        name: name in messages.
        known: whether a file is of this kind, by its path and its first bytes, unpacked.
        records: reads the columns of records from path and content.
        ids: maps ids.
        hint: what converts files that nothing reads.
    """

    name: str
    known: Callable[[Path, bytes], bool]
    records: Callable[[Path, Any], tuple[Columns, Values]] | None = None
    ids: Callable[[Path], Part] | None = None
    hint: str = ""


def _lines(content: Any) -> Iterator[str]:
    for number, line in enumerate(iter(content.readline, b"") if len(content) else ()):
        yield line.decode("utf-8" if number else "utf-8-sig")


def _json_lines(path: Path, content: Any) -> tuple[Columns, Values]:
    records = _records(content)
    firsts = [*islice(records, FIRST_RECORDS)]  # one may lack a column that others have
    columns = dict.fromkeys(name for record in firsts for name in record)
    return [*columns], lambda column: (record.get(column) for record in chain(firsts, records))


def _records(content: Any) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(filter(str.strip, _lines(content)), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
        if not isinstance(record, dict):
            raise TypeError(f"record {number} is no object")
        yield record


def _json(path: Path, content: Any) -> tuple[Columns, Values]:
    found = json.loads(content[:].decode("utf-8-sig"))
    records = found if isinstance(found, list) else [found]
    return [*records[0]], lambda column: (record.get(column) for record in records)


def _csv(path: Path, content: Any) -> tuple[Columns, Values]:
    csv.field_size_limit(1 << 30)
    rows = csv.reader(_lines(content), delimiter=_delimiter(path, content[:HEAD_BYTES]), strict=True)
    columns = next(rows, [])

    def values(column: str) -> Iterator[str]:
        for row in filter(None, rows):
            if len(row) != len(columns):
                raise ValueError(f"{len(row)} fields, the header has {len(columns)}")
            yield row[columns.index(column)]

    return columns, values


def _parquet(path: Path, content: Any) -> tuple[Columns, Values]:
    import pyarrow.parquet  # comes with `datasets`; few need it

    file = pyarrow.parquet.ParquetFile(path)
    return file.schema_arrow.names, lambda column: _of_batches(file.iter_batches(columns=[column]), column)


def _arrow(path: Path, content: Any) -> tuple[Columns, Values]:
    import pyarrow

    of_file, held = content[:6] == b"ARROW1", pyarrow.memory_map(str(path))
    opened = pyarrow.ipc.open_file(held) if of_file else pyarrow.ipc.open_stream(held)
    batches = map(opened.get_batch, range(opened.num_record_batches)) if of_file else opened
    return opened.schema.names, lambda column: _of_batches(batches, column)


def _of_batches(batches: Iterable[Any], column: str) -> Iterator[Any]:
    for batch in batches:
        values = batch.column(column)
        flat = values.flatten() if hasattr(values, "value_lengths") and not values.null_count else None
        if flat is None or flat.null_count or str(flat.type).lstrip("u")[:3] != "int":
            yield from values.to_pylist()
        else:  # lists of ids
            yield from np.split(flat.to_numpy(), np.cumsum(values.value_lengths().to_numpy())[:-1])


def _tar(path: Path, content: Any) -> tuple[Columns, Values]:
    """Read the samples of a tar as records: files one after the other whose names are equal up to the first dot."""
    with tarfile.open(fileobj=content, mode="r:") as opened:
        files = [(*key_and_kind(member.name), member) for member in opened if member.isfile()]
        after = content[opened.offset :]  # the library ends where it reads no further file
    if not after or after.strip(b"\0"):
        raise tarfile.ReadError("its end is missing, or it has more after it")
    if len({file[:2] for file in files}) < len(files):
        raise tarfile.ReadError("it has a file twice")
    if {"train", "test"} <= {part for key, *_ in files for part in key.lower().split("/")}:
        raise tarfile.ReadError("its files are splits: unpack it")

    def records() -> Iterator[dict[str, Any]]:
        for _, of_sample in groupby(files, key=itemgetter(0)):
            sample: dict[str, Any] = {}
            for _, kind, member in of_sample:
                held = content[member.offset_data : member.offset_data + member.size]
                sample |= json.loads(held) if kind == "json" else {kind: held}
            yield sample

    n_samples = len({key for key, *_ in files})
    usual = [kind for kind, n in Counter(kind for _, kind, _ in files).items() if 2 * n >= n_samples]
    return [*dict.fromkeys((*usual, *next(records(), {})))], lambda column: (one.get(column) for one in records())


def key_and_kind(name: str) -> tuple[str, str]:
    """Return the key of a file in a tar, and its kind: its name up to the first dot, and what follows."""
    folder, _, file = name.rpartition("/")
    key, _, kind = file.partition(".")
    return f"{folder}/{key}", kind.lower()


def _numpy(path: Path) -> Part:
    ids = np.load(path, mmap_mode="r")
    kind = ids.dtype
    require(kind.kind in "iu", "data.path", path, f"must hold an array of integers, not {kind}")
    shape = f"must have one dimension, not the shape {ids.shape}: save ids.ravel()"
    require(ids.ndim == 1, "data.path", path, shape)
    require(ids.offset + ids.nbytes == path.stat().st_size, "data.path", path, "must have one array, and no more")
    return Part(path, 0, len(ids), format=kind.name if kind.isnative else kind.str, offset=ids.offset)


def _llm_c(path: Path) -> Part:
    magic, version, n_ids = struct.unpack_from("<4s2i", first_bytes(path))
    require(version in (1, 7), "data.path", path, f"must be of version 1 or 7 of llm.c, not {version}")
    kind = np.dtype(LLM_C[magic])
    held = (path.stat().st_size - LLM_C_HEADER) // kind.itemsize
    require(n_ids == held, "data.path", path, f"must have the {n_ids:,} ids of its header; it has {held:,}")
    return Part(path, 0, n_ids, format=kind.name, offset=LLM_C_HEADER)


def _indexed(path: Path) -> Part:
    """Map the ids of Megatron or fairseq: `.bin` without a header, beside an index of type, sequences and documents."""
    index = path.with_suffix(".idx").read_bytes()
    code, n = struct.unpack_from("<BQ", index, 17)
    require(code in TYPES_OF_INDEX, "data.path", path, f"must have integers, not the type {code} of its .idx")
    kind = np.dtype(TYPES_OF_INDEX[code])
    of_fairseq = len(index) == 26 + 12 * n  # without the number of documents
    at = 26 if of_fairseq else 34
    lengths, pointers = np.frombuffer(index, "<i4", n, at), np.frombuffer(index, "<i8", n, at + 4 * n)
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    whole = np.array_equal(pointers, starts[:-1] * kind.itemsize) and path.stat().st_size == starts[-1] * kind.itemsize
    require(whole, "data.path", path, "must have the sequences of its .idx one after the other, and no more")
    if not of_fairseq:
        starts = starts[np.frombuffer(index, "<i8", struct.unpack_from("<Q", index, 26)[0], at + 12 * n)]
    return Part(path, 0, path.stat().st_size // kind.itemsize, format=kind.name, starts=starts)


def _datatrove(path: Path) -> Part:
    ends = np.fromfile(path.with_name(f"{path.name}.index"), "<i8")
    kind = {2: "uint16", 4: "uint32"}.get(path.stat().st_size // max(1, int(ends[-1])), "")
    whole = kind != "" and path.stat().st_size == int(ends[-1]) * np.dtype(kind).itemsize
    require(whole, "data.path", path, f"must have the {ends[-1]:,} ids of its .index, of two or four bytes")
    return Part(path, 0, int(ends[-1]), format=kind, starts=np.append(0, ends))


@cache
def _lists(folder: Path, members: str) -> bool:
    """Return whether a folder's `index.json` lists `shards` or `chunks`."""
    with suppress(OSError, ValueError):
        return members in json.loads((folder / "index.json").read_bytes())
    return False


def _is_json_lines(path: Path, head: bytes) -> bool:
    lines = [line for line in head.removeprefix(BOM).split(b"\n") if line.strip()]
    if suffix(path) in (".jsonl", ".ndjson"):
        return not lines or not lines[0].lstrip().startswith(b"[")
    whole = lines[:-1] if len(head) >= HEAD_BYTES else lines  # none if the first record goes on
    if not lines or not lines[0].startswith(b"{"):
        return False
    with suppress(ValueError):
        return len([*map(json.loads, whole[:2])]) > 1 or bool(WITH_COLUMN.match([*whole, head][0]))
    return False


def _delimiter(path: Path, head: bytes) -> str:
    line = head.split(b"\n")[0].decode(errors="replace")
    return "\t" if suffix(path) in (".tsv", ".tab") else max(",;\t|", key=line.count)


def _is_tfrecords(path: Path, head: bytes) -> bool:
    """Return whether each record has its length in eight bytes before it, four of a checksum on either side."""
    content, at = np.memmap(path, mode="r"), 0
    for _ in range(8):
        n_bytes = int.from_bytes(bytes(content[at : at + 8]), "little")
        at += 16 + n_bytes
        if at >= len(content) or not n_bytes:
            return at == len(content) and n_bytes > 0
    return True


def _starts(*firsts: bytes) -> Callable[[Path, bytes], bool]:
    return lambda _, head: head.startswith(firsts)


def _beside(first: bytes) -> Callable[[Path, bytes], bool]:
    """Return whether a `.bin` has an `.idx` beside it, which begins so."""

    def known(path: Path, _: bytes) -> bool:
        index = path.with_suffix(".idx")
        return path.suffix == ".bin" and index.is_file() and first_bytes(index).startswith(first)

    return known


# The first row whose signature is met.
FORMATS = [
    Format("an array of NumPy", _starts(b"\x93NUMPY"), ids=_numpy),
    Format("Parquet", _starts(b"PAR1"), records=_parquet),
    Format("encrypted Parquet", _starts(b"PARE"), hint="write it without encryption"),
    Format("Arrow", _starts(b"ARROW1\0\0"), records=_arrow),
    Format("Arrow", lambda path, head: head[:4] == b"\xff" * 4 and suffix(path) in STREAMS_OF_ARROW, records=_arrow),
    Format("llm.c", lambda _, head: head[:4] in LLM_C, ids=_llm_c),
    Format("Megatron or fairseq", _beside(b"MMIDIDX\0"), ids=_indexed),
    Format("the older indexed dataset of fairseq", _beside(b"TNTIDX"), hint="fairseq-preprocess --dataset-impl mmap"),
    Format("datatrove", lambda path, _: path.with_name(f"{path.name}.index").is_file(), ids=_datatrove),
    Format("a tar of samples", lambda _, head: head[257:262] == b"ustar", records=_tar),
    Format("MosaicML streaming (MDS)", lambda path, _: ".mds" in path.suffixes, hint=OF_MDS),
    Format("MosaicML streaming (MDS)", lambda path, _: _lists(path.parent, "shards"), hint=OF_MDS),
    Format("litdata", lambda path, _: _lists(path.parent, "chunks"), hint=OF_LITDATA),
    Format("an office document", lambda path, _: suffix(path) in OFFICE, hint="pandoc -t plain FILE -o FILE.txt"),
    Format("PDF", _starts(b"%PDF-", b"%!PS"), hint="pdftotext FILE"),
    Format("an archive", _starts(b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf", b"Rar!\x1a\x07"), hint="unpack it"),
    Format("LZ4", _starts(b"\x04\x22\x4d\x18"), hint="unpack it"),
    Format("HDF5", _starts(b"\x89HDF\r\n"), hint="write its ids with numpy.save"),
    Format("a pointer of Git LFS", _starts(b"version https://git-lfs.github.com/spec/"), hint="git lfs pull"),
    Format("TFRecords", _is_tfrecords, hint="write the ids that tensorflow reads with numpy.save, or JSON lines"),
    Format("JSON lines", _is_json_lines, records=_json_lines),
    Format("JSON", lambda _, head: bool(JSON_RECORDS.match(head.removeprefix(BOM))), records=_json),
    Format("CSV", lambda path, _: suffix(path) in (".csv", ".tsv", ".tab"), records=_csv),
    Format("UTF-16", _starts(b"\xff\xfe", b"\xfe\xff"), hint="iconv -f UTF-16 -t UTF-8 FILE"),
    Format("a picture or program", _starts(b"\x7fELF", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"{\\rtf"), hint=""),
    Format("text", lambda _, head: b"\0" not in head),
    Format("binary", lambda _, head: True),
]
# Signatures so short that ids may begin with them.
RAW_IDS = ("UTF-16", "a picture or program", "binary")


def suffix(path: Path) -> str:
    """Return the last ending of a name that is not one of compression, in lower case."""
    return next(end for end in [*reversed(path.suffixes), ""] if end not in COMPRESSED).lower()


def register_format(row: Format) -> None:
    """Add a format, whose signature is tried before those of the package; one of the same name is replaced."""
    FORMATS[:] = [row, *(other for other in FORMATS if other.name != row.name)]


def format_of(path: Path) -> Format:
    """Return the format of a file, by its name and first bytes.

    Raises:
        UserError: it cannot be read, or a file of guests cannot be imported.
    """
    load_guests()
    head = first_bytes(path)
    return next(row for row in FORMATS if row.known(path, head))
