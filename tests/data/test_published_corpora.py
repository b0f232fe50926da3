"""Corpora of the paper in the layouts of a data folder; downloads."""

import lzma
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import datasets
import numpy as np
import pytest

from tests.data.helpers import files, text_of
from txl_lightning.config.schemas import DataConfig, EvaluationConfig, data_class
from txl_lightning.data import published_corpora, sources
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.published_corpora import (
    ADDRESSES,
    PUBLISHED,
    REVISION,
    WIKITEXT,
)
from txl_lightning.data.streams import ShuffledStreams
from txl_lightning.errors import UserError

SIZES = {"train": 900, "valid": 50, "test": 50}
OF_WORDS = {
    "vocabulary": 6,
    "train": 10,
    "valid": 10,
    "test": 10,
}
PUBLISHED_HERE = {
    "enwik8, newlines kept": {"vocabulary": 5, **SIZES},
    "enwik8, newlines dropped": {"vocabulary": 4},
    "text8": {"vocabulary": 3, **SIZES},
    "wikitext-2": OF_WORDS,
    "wikitext-103": OF_WORDS,
    "ptb": OF_WORDS,
    "lm1b": {"vocabulary": 6},
    "lm1b, <S> at both ends": {"vocabulary": 6},
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder without a network; published sizes fit the texts that these tests write."""
    monkeypatch.delenv("TXL_DATA", raising=False)
    monkeypatch.setattr(
        published_corpora,
        "CHARACTERS",
        sum(SIZES.values()),
    )
    for name, sizes in PUBLISHED_HERE.items():
        monkeypatch.setitem(PUBLISHED, name, sizes)
    monkeypatch.setattr(
        published_corpora,
        "_download",
        MagicMock(side_effect=OSError("offline")),
    )
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def config_of(folder: Path, name: str, **options: Any) -> DataConfig:
    """The configuration of a corpus with a cache in a folder."""
    level = LEVELS.get(name, "word")
    return data_class(name)(name=name, level=level, cache_dir=str(folder / "cache"), **options)


def in_splits(text: Any) -> list[Any]:
    return [
        text[:900],
        text[900:950],
        text[950:],
    ]


def split_files(pattern: str, contents: list[bytes]) -> dict[str, bytes]:
    return {pattern.format(split): text for split, text in zip(SPLITS, contents, strict=True)}


# A corpus is its name, its symbols in the order of their numbers, and the symbols of each split's tokens, joined.
ENWIK8 = ("aé\nb\n".encode() * 200)[:1000]
ENWIK8_FILES = split_files("enwik8/{}.txt.raw", in_splits(ENWIK8))
KEPT = ("enwik8, newlines kept", "\na\xc3\xa9b", in_splits(ENWIK8.decode("latin-1")))
DROPPED = (
    "enwik8, newlines dropped",
    "a\xc3\xa9b",
    [text.replace("\n", "") for text in KEPT[2]],
)
TEXT8 = (b" ab" * 334)[:1000]
TEXT8_SPLITS = in_splits(TEXT8.decode())
WIKIPEDIA = ("wikipedia-2015", ("<unk>", " ", "a", "b"), TEXT8_SPLITS)
PACKED = {"wikipedia-2015/wikipedia-2015.txt.xz": lzma.compress(TEXT8)}
WORDS = b" = A = \n\n the cat <unk> the \n"
SIX_WORDS = ("<eos>", "=", "the", "A", "cat", "<unk>")
WORD_TOKENS = ["= A = <eos> <eos> the cat <unk> the <eos>"] * 3
SHARDS = {
    f"lm1b/1b/news.en-{i:05d}-of-00100": b"the cat\nthe dog sat\n\n"
    for i in range(
        1,
        100,
    )
}
HELD_OUT = {"lm1b/1b/held-out/news.en.heldout-00000-of-00050": b"a dog sat\nthe cat\n"}
SIX_OF_LM1B = ("<S>", "<UNK>", "the", "cat", "dog", "sat")
STARTS = [
    " ".join(["<S> the cat <S> the dog sat"] * 99),
    *["<S> <UNK> dog sat <S> the cat"] * 2,
]
BOTH_TRAIN = " ".join(["<S> the cat <S> <S> the dog sat <S>"] * 99)
BOTH = [BOTH_TRAIN, *["<S> <UNK> dog sat <S> <S> the cat <S>"] * 2]
LEVELS = {"enwik8": "byte", "text8": "char", "wikipedia-2015": "char"}
TWO_MARKS = ("lm1b, <S> at both ends", SIX_OF_LM1B, BOTH)
LAYOUTS = [
    ("enwik8", {"enwik8/enwik8": ENWIK8}, KEPT, {"newlines": "kept"}),
    ("enwik8", {"enwik8/train.txt": b"-"} | ENWIK8_FILES, DROPPED, {}),
    ("text8", {"text8/text8": TEXT8}, ("text8", " ab", TEXT8_SPLITS), {}),
    ("wikipedia-2015", PACKED, WIKIPEDIA, {}),
    ("lm1b", SHARDS | HELD_OUT, ("lm1b", SIX_OF_LM1B, STARTS), {}),
    ("lm1b", SHARDS | HELD_OUT, TWO_MARKS, {"sentence_marks": "both"}),
]
for pattern in ("wikitext-2/{}.txt", "wikitext-103/wiki.{}.tokens", "ptb/ptb.{}.txt"):
    folder = pattern.split("/")[0]
    expected = (folder, SIX_WORDS, WORD_TOKENS)
    LAYOUTS.append(
        (
            folder,
            split_files(pattern, [WORDS] * 3),
            expected,
            {},
        )
    )


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 18])
@pytest.mark.parametrize(("name", "layout", "expected", "options"), LAYOUTS)
def test_every_layout_is_the_same(root, monkeypatch, name, layout, expected, options, chunk_bytes):
    monkeypatch.setattr(sources, "CHUNK", chunk_bytes)
    files(root, layout)
    config = config_of(root.parent, name, **options)
    if chunk_bytes == 7:
        monkeypatch.setenv("TXL_DATA", str(root))
    else:
        config.root = str(root)
    corpus = load_corpus(config)
    again = load_corpus(config, corpus.vocabulary)
    expected_name, symbols, texts = expected
    assert corpus.name == expected_name
    assert corpus.vocabulary.symbols == tuple(symbols)
    space = " " if config.level == "word" else ""
    for split, text in zip(SPLITS, texts, strict=True):
        tokens = corpus.splits[split]
        assert space.join(symbols[token] for token in tokens) == text
        assert np.array_equal(again.splits[split], tokens)
        if name == "lm1b":
            every = 2 if options else 1
            assert np.array_equal(corpus.sentences[split], np.flatnonzero(tokens == 0)[::every])
    assert tokens.dtype == (np.int32 if config.level == "word" else np.uint8)
    assert corpus.cutoffs == (), "the standard ones are beyond these vocabularies"


CUT_OFF = {"wikipedia-2015/wikipedia-2015.txt.xz": lzma.compress(b"a b" * 99)[:-20]}
LONG_VALID = split_files(
    "wikitext-2/{}.txt",
    [WORDS, WORDS * 2, WORDS],
)
WITHOUT_CAT = split_files(
    "wikitext-2/{}.txt",
    [WORDS.replace(b"cat", b"the"), WORDS, WORDS],
)
LESS = dict([*SHARDS.items()][1:]) | HELD_OUT
OTHERS = [
    ("wikitext-2", LONG_VALID, r"wikitext-2: .* has 20 \(valid\) where 10 are pub"),
    ("wikitext-2", WITHOUT_CAT, r"has 5 \(vocabulary\) where 6"),
    ("enwik8", {"enwik8/enwik8": ENWIK8[:-1]}, "enwik8 has 999 bytes where 1,000 are published"),
    ("lm1b", LESS, r"lm1b, and the download failed \(offline\)"),
    ("wikipedia-2015", CUT_OFF, "txt.xz: cannot be read"),
]


@pytest.mark.parametrize(("name", "layout", "words"), OTHERS)
def test_a_corpus_that_is_not_the_published_one_is_refused(root, name, layout, words):
    files(root, layout)
    with pytest.raises(UserError, match=words):
        load_corpus(config_of(root.parent, name, root=str(root)))
    assert list((root.parent / "cache").glob("*")) == []


def test_a_data_folder_must_be_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TXL_DATA", "missing")
    with pytest.raises(UserError, match=r"^TXL_DATA=missing: must be a folder"):
        load_corpus(config_of(tmp_path, "enwik8"))


def test_sentences_of_lm1b_are_shuffled_in_training_only(root):
    files(
        root,
        SHARDS | {name: text * 30 for name, text in HELD_OUT.items()},
    )
    data = config_of(
        root.parent,
        "lm1b",
        root=str(root),
        batch_size=4,
        segment_len=5,
    )
    module = StreamsDataModule(data, EvaluationConfig(2, 5))
    train = module.train_dataloader()
    valid = module.val_dataloader()
    assert {type(train), type(valid)} == {ShuffledStreams}
    assert (train.seed, valid.seed) == (data.seed, None)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of Penn Treebank, at its address."""
    words = b" a b <unk> \n b a \n" * 9
    inside = ADDRESSES["ptb"][1]
    files(
        tmp_path / "made",
        split_files(f"{inside}/ptb.{{}}.txt", [words] * 3),
    )
    made = shutil.make_archive(
        str(tmp_path / "packed"),
        "gztar",
        tmp_path / "made",
    )
    monkeypatch.setitem(
        ADDRESSES,
        "ptb",
        (Path(made).as_uri(), inside),
    )
    monkeypatch.setitem(PUBLISHED, "ptb", {"vocabulary": 4})
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "downloads")
    monkeypatch.delenv("TXL_DATA", raising=False)
    return Path(made)


def test_a_corpus_that_is_not_there_is_fetched(tmp_path, archive):
    corpus = load_corpus(config_of(tmp_path, "ptb"))
    assert corpus.vocabulary.decode(corpus.splits["train"][:7]) == "a b <unk>\nb a\n"


def test_a_bad_archive_is_refused(tmp_path, archive):
    archive.write_bytes(b"<html>please log in")
    words = r"data=ptb: not in .*ptb, and the download failed \(.* is not complete\); put"
    with pytest.raises(UserError, match=words):
        load_corpus(config_of(tmp_path, "ptb"))


@pytest.mark.parametrize("name", ["enwik8", "lm1b", "wikipedia-2015"])
def test_without_network_one_line_names_the_files(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    if name in ADDRESSES:
        monkeypatch.setitem(ADDRESSES, name, ("http://127.0.0.1:9/archive.zip", ""))
    words = rf"data={name}: not in .*{name}, and .*; put .* data.root or TXL_DATA"
    with pytest.raises(UserError, match=words) as error:
        load_corpus(config_of(tmp_path, name))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_wikitext_comes_through_datasets_line_by_line(tmp_path, monkeypatch):
    rows = {
        "train": ["", " = A = \n", " the a \n"],
        "validation": [" a \n"],
        "test": ["", " the\n"],
    }
    made = {split: datasets.Dataset.from_dict({"text": text}) for split, text in rows.items()}
    known = {(WIKITEXT, "wikitext-2-v1", REVISION): made}
    load = lambda *given, revision: known[(*given, revision)]  # noqa: E731
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.delenv("TXL_DATA", raising=False)
    monkeypatch.setitem(PUBLISHED, "wikitext-2", {})
    corpus = load_corpus(config_of(tmp_path, "wikitext-2"))
    assert text_of(corpus, "train") == "\n= A =\nthe a\n"
    assert text_of(corpus, "valid") == "a\n"
    assert text_of(corpus, "test") == "\nthe\n"
    with pytest.raises(UserError, match="data=wikitext-103: not in"):
        load_corpus(config_of(tmp_path, "wikitext-103"))
