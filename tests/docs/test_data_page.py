"""Every line of docs/data.md's table "what you have, what to type" reads what it says."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest

from tests.data.helpers import files
from tests.data.test_formats import IDS, LINES, TEXTS, WRITERS, csv_of, parquet_of, tar
from tests.docs.pages import ROOT
from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.subwords import train_byte_pairs

PAGE = (ROOT / "docs/data.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `((?:data\.level=\S+ )?data\.path=\S+[^`]*)` \|$", PAGE, re.MULTILINE)
NAMES = json.dumps({f"note {n}": n for n in range(2_000)})
HUB = {"hub/train-0.parquet": TEXTS[:30], "hub/test-0.parquet": TEXTS[30:]}
STORED: dict[str, Callable[[Path], object]] = {  # of every `data.path` in the table: writes it into a folder
    "book.txt": lambda folder: files(folder, {"book.txt": "".join(TEXTS)}),
    "c4/": lambda folder: files(folder, {"c4/c4-train.00000.json.gz": gzip.compress(LINES)}),
    "posts.jsonl": lambda folder: files(folder, {"posts.jsonl": LINES.replace(b'"text"', b'"body"')}),
    "reviews.csv": lambda folder: files(folder, {"reviews.csv": csv_of(",").replace(b"text", b"review", 1)}),
    "hub/": lambda folder: files(folder, {name: parquet_of(pyarrow.string(), x) for name, x in HUB.items()}),
    "saved/": lambda folder: datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder / "saved"),
    "shards/": lambda folder: files(folder, {"shards/a-0.tar": tar("txt")}),
    "notes.npy": lambda folder: np.save(folder / "notes.npy", IDS),
    "train.bin": lambda folder: IDS.tofile(folder / "train.bin"),
    "fineweb_train.bin": lambda folder: WRITERS["llm.c"](folder).rename(folder / "fineweb_train.bin"),
    "corpus_text_document": WRITERS["Megatron uint16 by its prefix"],
    "tokenized/": lambda folder: WRITERS["datatrove"](folder / "tokenized"),
    "midi/": lambda folder: WRITERS["Parquet"](folder / "midi"),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_reads_what_it_says(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = dict(word.split("=") for word in row.replace("data.", "").split())
    files(tmp_path, {"tokenizer.json": train_byte_pairs(TEXTS, 300), "vocab.json": NAMES})
    if typed["path"].endswith("/"):
        Path(typed["path"]).mkdir()
    STORED[typed["path"]](tmp_path)
    config = FileData(name="file", cache_dir="cache", **{"level": "bpe", **typed})
    corpus = load_corpus(config)
    tokens = np.concatenate([np.asarray(corpus.splits[split]) for split in SPLITS])
    if config.level == "ids":
        assert np.array_equal(tokens, IDS)
    else:
        assert corpus.vocabulary.decode(tokens) == "".join(TEXTS)


def test_all_rows_are_tested() -> None:
    assert {row.split("data.path=")[1].split()[0] for row in ROWS} == {*STORED}
    assert len(ROWS) == 15
