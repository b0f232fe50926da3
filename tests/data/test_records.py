"""Records of text in JSON, CSV, Parquet and Arrow: each is a document; bad ones end with their line, or are counted."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest

from tests.data.helpers import corpus_of, documents_of, files, text_of
from tests.data.writers import (
    JSON_LINES,
    RECORDS,
    TEXTS,
    csv_of,
    json_lines,
    parquet_of,
    pzstd_of,
)
from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError


def records_of(folder: Path, path: Any, **options: Any) -> list[str]:
    """Return the documents of files that are read as one split."""
    config = FileData(
        name="file", path=str(path), level="byte", cache_dir=str(folder / "cache"), **options
    )
    return documents_of(load_corpus(config, Vocabulary("byte"), whole=True))


DICTIONARY = pyarrow.dictionary(
    pyarrow.int32(),
    pyarrow.string(),
)
WRITTEN = {
    "c4-train.00000-of-01024.json.gz": gzip.compress(JSON_LINES),
    "pzstd.jsonl.zst": pzstd_of(JSON_LINES),
    "bzip2.ndjson.bz2": bz2.compress(JSON_LINES),
    "list.json": json.dumps(RECORDS, indent=1).encode(),
    "bom.jsonl": b"\xef\xbb\xbf" + JSON_LINES,
    "commas.csv": csv_of(","),
    "semicolons.csv": csv_of(";"),
    "dictionary.parquet": parquet_of(DICTIONARY),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_record_is_a_document(tmp_path, name):
    (path,) = files(
        tmp_path,
        {name: WRITTEN[name]},
    )
    assert records_of(tmp_path, path) == [text.removesuffix("\n") + "\n" for text in TEXTS]


def test_a_folder_of_objects_over_several_lines_is_records(tmp_path):
    for n in range(9):
        record = {
            "id": n,
            "title": "x",
            "text": f"text {n}",
        }
        files(
            tmp_path / "documents",
            {f"{n}.json": json.dumps(record, indent=2)},
        )
    assert records_of(tmp_path, tmp_path / "documents") == [f"text {n}\n" for n in range(9)]


def test_shards_whose_first_record_is_long_are_records(tmp_path):
    texts = ["word " * 30_000, "b", "c"]
    lines = json_lines([{"url": "x", "raw_content": text} for text in texts])
    shard = pyarrow.compress(lines, "zstd", asbytes=True)
    files(
        tmp_path / "crawl",
        {"0.json.zst": shard, "1.json.zst": shard},
    )
    expected = [f"{text}\n" for text in texts] * 2
    assert records_of(tmp_path, tmp_path / "crawl", column="raw_content") == expected


def test_quotes_of_tsv_are_characters(tmp_path):
    """Version 0.5.0 read the first three rows as one record with ids inside."""
    rows = 'id\ttext\n1\t"an open quote\n2\tsecond\n3\ta closed one"\n4\tlast\n'
    (path,) = files(tmp_path, {"validated.tsv": rows})
    expected = ['"an open quote\n', "second\n", 'a closed one"\n', "last\n"]
    assert records_of(tmp_path, path) == expected
    (path,) = files(
        tmp_path,
        {"quoted.tsv": csv_of("\t")},
    )
    assert len(records_of(tmp_path, path, format="csv")) == len(TEXTS)


def test_values_of_csv_stay_as_they_are(tmp_path):
    (path,) = files(tmp_path, {"a.csv": "text,n\n007,1\nNA,2\n2026-01-02,3\n"})
    assert records_of(tmp_path, path) == ["007\n", "NA\n", "2026-01-02\n"]


@pytest.mark.parametrize("name", ["events.jsonl", "events.log", "table.csv"])
def test_any_file_is_read_as_text_if_the_format_says_so(tmp_path, name):
    content = JSON_LINES.decode()
    (path,) = files(tmp_path, {name: content})
    assert text_of(corpus_of(path, tmp_path, level="char", format="text")) == content


@pytest.mark.parametrize("name", ["events.log", "wiki_00"])
def test_text_that_begins_like_json_is_refused(tmp_path, name):
    (path,) = files(tmp_path, {name: JSON_LINES})
    with pytest.raises(OptionError, match=r"not JSON; data\.format=jsonl or json reads its"):
        corpus_of(path, tmp_path, level="char")
    assert len(records_of(tmp_path, path, format="jsonl")) == len(TEXTS)


def test_a_column_is_chosen_and_nulls_are_counted(tmp_path, capsys):
    lines = '{"body": "a", "text": "x"}\n{"body": null}\n{"text": "y"}\n{"body": "b"}\n'
    (path,) = files(tmp_path, {"a.jsonl": lines})
    assert records_of(tmp_path, path, column="body") == ["a\n", "b\n"]
    assert "a.jsonl: 2 records lack the column; left out" in capsys.readouterr().err
    words = r"data\.column=title: must be a column of .*a\.jsonl: body, text"
    with pytest.raises(OptionError, match=words):
        records_of(tmp_path, path, column="title")


def test_a_text_has_no_column(tmp_path):
    (path,) = files(
        tmp_path,
        {"a.txt": "text\n" * 9},
    )
    with pytest.raises(OptionError, match=r"must be null for .*a\.txt: it is text"):
        records_of(tmp_path, path, column="body")


BAD = [
    (b"not JSON", "line 2 .*JSONDecodeError"),
    (b'{"text": 7}', "line 2 .*must be a text, not 7"),
    (b'{"text": "\\ud800"}', "line 2 .*surrogates not allowed"),
    (b"[" * 100_000, "line 2 .*RecursionError"),
    (b'{"text": "\xff"}', "line 2 .*UnicodeDecodeError"),
    (b"[1, 2]", "line 2 .*it is not a JSON object"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_a_bad_record_ends_with_its_line_or_is_counted(tmp_path, capsys, line, words):
    (path,) = files(
        tmp_path,
        {"a.jsonl": b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n'},
    )
    with pytest.raises(OptionError, match=f"{words}.*data.skip_bad=true leaves it out"):
        records_of(tmp_path, path)
    assert records_of(tmp_path, path, skip_bad=True) == ["a\n", "b\n"]
    assert "1 records cannot be read; left out" in capsys.readouterr().err


BROKEN_JSON = '[{"text": "a"}, {"text": "b}, {"text": "c"}]'
BROKEN_QUOTE = 'text,n\n"Hello",1\n"he said "so",2\nlast,3\n'
BROKEN = [
    ("a.json", BROKEN_JSON, r"a\.json: cannot be read .*not JSON"),
    ("a.csv", BROKEN_QUOTE, r"a\.csv: cannot be read .ValueError: after line 2: ',' expected"),
]


@pytest.mark.parametrize(("name", "content", "words"), BROKEN)
def test_a_broken_list_of_json_or_quote_of_csv_always_ends(tmp_path, name, content, words):
    """Nothing says where its next record begins."""
    (path,) = files(tmp_path, {name: content})
    with pytest.raises(UserError, match=words):
        records_of(tmp_path, path, skip_bad=True)


DAMAGED = [
    ("a.jsonl", b'{"text": null}\n' * 9, "must have text or ids: a.jsonl is empty"),
    ("a.json", b'[{"text": "a"}, {"text": "b"}', r"a\.json: cannot be read .*not JSON"),
    ("a.csv", b"text,text\na,b\n", "must be one column of .*a.csv: text, text"),
    ("a.csv", "text\nword\n".encode("utf-16"), r"a\.csv: cannot be read .UnicodeDecodeError"),
    (
        "a.jsonl",
        JSON_LINES.replace(b"\n", b"\r"),
        "line 1 cannot be read .JSONDecodeError: Extra data",
    ),
    (
        "a.parquet",
        parquet_of(pyarrow.int32(), ["0", "1"]),
        "record 1 cannot be read .TypeError: must be a text, not 0",
    ),
    ("a.json", b'["a", "b"]', "it is not a JSON object"),
    ("a.csv", b"id,text\n1,abc,d\n", "record 1 .*not have the fields of the header"),
    (
        "a.parquet",
        b"PAR1" + bytes(99) + b"\xff" * 4 + b"PAR1",
        r"a\.parquet: cannot be read \(Arrow",
    ),
    ("a.arrow", bytes(99), r"a\.arrow: cannot be read"),
    ("a.txt.xz", lzma.compress(b"text" * 999)[:-9], "a.txt.xz: cannot be read"),
]


@pytest.mark.parametrize(("name", "content", "words"), DAMAGED)
def test_a_damaged_file_is_named(tmp_path, name, content, words):
    (path,) = files(tmp_path, {name: content})
    with pytest.raises(UserError, match=words) as error:
        corpus_of(path, tmp_path, level="char")
    assert "\n" not in str(error.value)


def test_datasets_saved_to_disk_are_read_by_their_splits(tmp_path):
    folder = tmp_path / "saved"
    texts = {
        "train": TEXTS[:30],
        "validation": TEXTS[30:35],
        "test": TEXTS[35:],
    }
    saved = {split: datasets.Dataset.from_dict({"text": rows}) for split, rows in texts.items()}
    shards = {"train": 2, "validation": 1, "test": 1}
    datasets.DatasetDict(saved).save_to_disk(folder, num_shards=shards)
    (folder / "train/cache-0123456789abcdef.arrow").write_bytes(b"of a map that was run")
    corpus = corpus_of(str(folder), tmp_path, level="byte")
    for split, rows in zip(SPLITS, texts.values(), strict=True):
        assert text_of(corpus, split) == "".join(row.removesuffix("\n") + "\n" for row in rows)


SENTENCES = [f"日本語のテキスト {n % 9} です。 größer {'x ' * (n % 7)}" for n in range(400)]


@pytest.mark.parametrize("level", ["char", "word", "bpe"])
def test_cuts_between_splits_keep_records(tmp_path, level):
    """A cut moves forward to a character or line; documents begin where the records do all the same."""
    records = [{"text": text} for text in SENTENCES]
    (path,) = files(
        tmp_path,
        {"a.jsonl": json_lines(records)},
    )
    lines = SENTENCES
    options = {}
    if level == "word":
        lines = [" ".join(text.split()) for text in SENTENCES]
        options["min_count"] = 1
    corpus = corpus_of(path, tmp_path, level=level, **options)
    assert text_of(corpus) == "".join(f"{line}\n" for line in lines)
    for split in SPLITS:
        first, *others = documents_of(corpus, split)
        assert {text.removesuffix("\n") for text in others[:-1]} <= set(lines)
        assert first.endswith("\n")
