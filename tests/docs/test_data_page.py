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
import yaml

from tests.data.helpers import files
from tests.data.writers import (
    IDS,
    JSON_LINES,
    TEXTS,
    csv_of,
    parquet_of,
    write_lists,
    write_llm_c,
    write_megatron,
)
from tests.docs.pages import ROOT
from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.subwords import train_byte_pairs

PAGE = (ROOT / "docs/data.md").read_text()
ROWS = re.findall(
    r"^\| [^|]+ \| `((?:data\.level=\S+ )?data\.path=\S+[^`]*)` \|$", PAGE, re.MULTILINE
)
TEXT = "".join(TEXTS)
NAMES = json.dumps({f"note {n}": n for n in range(2_000)})
HUB = {"hub/train-0.parquet": TEXTS[:30], "hub/test-0.parquet": TEXTS[30:]}
PAPER = {"paper/a.tex": TEXT[:90], "paper/b/c.tex": TEXT[90:], "paper/plot.png": bytes(9_000)}
STORED: dict[
    str, Callable[[Path], object]
] = {  # of every `data.path` in the table: writes it into a folder
    "book.txt": lambda folder: files(folder, {"book.txt": TEXT}),
    "paper/**/*.tex": lambda folder: files(folder, PAPER),
    "c4/": lambda folder: files(folder, {"c4/c4-train.00000.json.gz": gzip.compress(JSON_LINES)}),
    "wiki_00": lambda folder: files(folder, {"wiki_00": JSON_LINES}),
    "posts.jsonl": lambda folder: files(
        folder, {"posts.jsonl": JSON_LINES.replace(b'"text"', b'"body"')}
    ),
    "crawl.jsonl": lambda folder: files(folder, {"crawl.jsonl": JSON_LINES + b'{"text": "cut o'}),
    "reviews.csv": lambda folder: files(folder, {"reviews.csv": csv_of(column="review")}),
    "quoted.tsv": lambda folder: files(folder, {"quoted.tsv": csv_of("\t")}),
    "hub/": lambda folder: files(
        folder, {name: parquet_of(texts=texts) for name, texts in HUB.items()}
    ),
    "saved/": lambda folder: datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(
        folder / "saved"
    ),
    "events.json": lambda folder: files(folder, {"events.json": TEXT}),
    "photo.bmp": lambda folder: files(folder, {"photo.bmp": TEXT}),
    "notes.npy": lambda folder: np.save(folder / "notes.npy", IDS),
    "train.bin": lambda folder: IDS.tofile(folder / "train.bin"),
    "tokens.ds": lambda folder: IDS.tofile(folder / "tokens.ds"),
    "fineweb_train.bin": write_llm_c,
    "corpus_text_document": write_megatron,
    "midi/": lambda folder: write_lists(folder / "midi", "a.parquet", pyarrow.int32()),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_reads_what_it_says(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = {}
    for word in row.split():
        name, value = word.removeprefix("data.").split("=")
        typed[name] = yaml.safe_load(value) if name == "skip_bad" else value
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
        assert corpus.vocabulary.decode(tokens) == TEXT


def test_all_rows_are_tested() -> None:
    assert {row.split("data.path=")[1].split()[0] for row in ROWS} == {*STORED}
    assert len(ROWS) == 20
