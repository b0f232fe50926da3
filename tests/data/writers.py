"""Files as the field's tools write them: records of text, and token ids."""

import csv
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table

random = np.random.default_rng(1)
DOCUMENTS = []
for size in (70, 300, 1, 29, 600):
    DOCUMENTS.append(random.integers(0, 2_000, size=size).astype(np.uint16))
LISTS = [document.tolist() for document in DOCUMENTS]
IDS = np.concatenate(DOCUMENTS)
STARTS = [0, 70, 370, 371, 400]
TEXTS = [f"record {n}, with a comma; é\n" + "and\ta line\n" * (n % 3) for n in range(40)]
RECORDS = [{"url": "http://example.org", "text": text, "score": float("nan")} for text in TEXTS]


def json_lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


JSON_LINES = json_lines(RECORDS)


def csv_of(delimiter: str = ",", column: str = "text") -> bytes:
    stored = io.StringIO()
    writer = csv.writer(stored, delimiter=delimiter)
    writer.writerow(["id", column])
    writer.writerows(enumerate(TEXTS))
    return stored.getvalue().encode()


def parquet_of(kind: Any = None, texts: list[str] | None = None) -> bytes:
    chosen = TEXTS if texts is None else texts
    column = pyarrow.array(
        chosen,
        pyarrow.string(),
    ).cast(kind or pyarrow.string())
    stored = io.BytesIO()
    write_table(
        pyarrow.table({"url": ["example.org"] * len(chosen), "text": column}),
        stored,
        row_group_size=7,
    )
    return stored.getvalue()


def pzstd_of(content: bytes) -> bytes:
    """Begin with a frame to skip, and have two more, as pzstd writes."""
    half = len(content) // 2
    packed = b"\x50\x2a\x4d\x18\x04\0\0\0" + bytes(4)
    for part in (content[:half], content[half:]):
        packed += pyarrow.compress(part, codec="zstd", asbytes=True)
    return packed


def write_megatron(
    folder: Path, dtype: str = "int32", code: int = 4, is_fairseq: bool = False
) -> Path:
    """Write a `.bin` and its `.idx` as the builders of indexed datasets of Megatron and fairseq do."""
    ids = IDS.astype(dtype)
    ids.tofile(folder / "corpus_text_document.bin")
    n = len(DOCUMENTS)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, n)
    if not is_fairseq:
        index += struct.pack("<Q", n + 1)
    lengths = [len(document) for document in DOCUMENTS]
    index += np.array(lengths, np.int32).tobytes()
    index += (np.array(STARTS, np.int64) * ids.itemsize).tobytes()
    if not is_fairseq:
        index += np.arange(n + 1, dtype=np.int64).tobytes()
    (folder / "corpus_text_document.idx").write_bytes(index)
    return folder / "corpus_text_document.bin"


def write_llm_c(folder: Path, magic: int = 20240520, dtype: str = "uint16") -> Path:
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(IDS)
    (folder / "fineweb_train.bin").write_bytes(header.tobytes() + IDS.astype(dtype).tobytes())
    return folder / "fineweb_train.bin"


# A chunk of lit-gpt's PackedDataset: a header of 24 bytes, and ids.
LIT_GPT = b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(IDS)) + IDS.tobytes()


def write_lists(folder: Path, name: str, kind: Any) -> Path:
    """Write lists of ids as Parquet, Feather or a stream of Arrow."""
    table = pyarrow.table(
        {
            "id": range(len(LISTS)),
            "input_ids": pyarrow.array(LISTS, pyarrow.list_(kind)),
        }
    )
    path = folder / name
    if name.endswith(".parquet"):
        write_table(table, path)
    elif name == "feather.arrow":
        write_feather(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path
