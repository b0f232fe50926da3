"""Every line of docs/data.md's table "what you have, what to type" reads what it says."""

import gzip
import io
import json
import re
import struct
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from tests.data.helpers import files
from tests.docs.pages import ROOT
from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.subwords import train_byte_pairs

TEXTS = [f"the square of {n} is {n * n}, as everybody knows\n" for n in range(200)]
IDS = (np.arange(3_000) * 7 % 199).astype(np.uint16)
LISTS = [part.tolist() for part in np.split(IDS, [100, 900])]
PAGE = (ROOT / "docs/data.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `((?:data\.level=\S+ )?data\.path=\S+[^`]*)` \|$", PAGE, re.MULTILINE)


def records(column: str) -> bytes:
    return "".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(TEXTS)).encode()


def tar() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as opened:
        for number, text in enumerate(TEXTS):
            info = tarfile.TarInfo(f"{number:06d}.txt")
            info.size = len(text)
            opened.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


def parquet(column: str, values: list[Any]) -> bytes:
    held = io.BytesIO()
    write_table(pyarrow.table({column: values}), held)
    return held.getvalue()


INDEX = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", len(IDS), 0, 0, 1)
HEADER = struct.pack("<3i", 20240520, 1, len(IDS)) + bytes(1012)
NPY = io.BytesIO()
np.save(NPY, IDS)
TABLE = "id,review\n" + "".join(f'{n},"{text.strip()}"\n' for n, text in enumerate(TEXTS))
NAMES = json.dumps({f"note {n}": n for n in range(199)})
FILES: dict[str, dict[str, bytes]] = {  # of every `data.path` in the table
    "book.txt": {"book.txt": "".join(TEXTS).encode()},
    "c4/": {"c4/c4-train.00000.json.gz": gzip.compress(records("text"))},
    "posts.jsonl": {"posts.jsonl": records("body")},
    "reviews.csv": {"reviews.csv": TABLE.encode()},
    "hub/": {"hub/train-0.parquet": parquet("text", TEXTS[:150]), "hub/test-0.parquet": parquet("text", TEXTS[150:])},
    "saved/": {},  # by `datasets`
    "shards/": {"shards/a-0.tar": tar()},
    "notes.npy": {"notes.npy": NPY.getvalue()},
    "train.bin": {"train.bin": IDS.tobytes()},
    "fineweb_train.bin": {"fineweb_train.bin": HEADER + IDS.tobytes()},
    "corpus_text_document": {"corpus_text_document.bin": IDS.tobytes(), "corpus_text_document.idx": INDEX},
    "tokenized/": {"tokenized/0.ds": IDS.tobytes(), "tokenized/0.ds.index": np.array([len(IDS)], np.uint64).tobytes()},
    "midi/": {"midi/a.parquet": parquet("input_ids", LISTS)},
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_reads_what_it_says(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = dict(word.split("=") for word in row.replace("data.", "").split())
    files(tmp_path, {**FILES[typed["path"]], "tokenizer.json": train_byte_pairs(TEXTS, 300), "vocab.json": NAMES})
    if typed["path"] == "saved/":
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk("saved")
    config = FileData(name="file", cache_dir="cache", **{"level": "bpe", **typed})
    corpus = load_corpus(config)
    tokens = np.concatenate([np.asarray(corpus.splits[split]) for split in SPLITS])
    if config.level == "ids":
        assert np.array_equal(tokens, IDS)
    else:
        assert corpus.vocabulary.decode(tokens) == "".join(TEXTS)


def test_all_rows_are_tested() -> None:
    assert {row.split("data.path=")[1].split()[0] for row in ROWS} == {*FILES}
    assert len(ROWS) == 15
