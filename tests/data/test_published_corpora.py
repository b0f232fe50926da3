"""Corpora of the paper in every layout of a data folder; downloads."""

import hashlib
import io
import lzma
import shutil
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch

from tests.data.helpers import files
from txl_lightning import files as checksums
from txl_lightning.config.schemas import DataConfig, EvaluationConfig, data_class
from txl_lightning.data import published_corpora, sources
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.published_corpora import (
    ADDRESSES,
    CHECKSUMS,
    PUBLISHED,
    REVISION,
    WIKITEXT,
    fetch,
)
from txl_lightning.data.streams import ShuffledStreams
from txl_lightning.errors import UserError

SIZES = {"train": 900, "valid": 50, "test": 50}
PUBLISHED_HERE = {
    "enwik8, newlines kept": {"vocabulary": 5, **SIZES},
    "enwik8, newlines dropped": {"vocabulary": 4},
    "text8": {"vocabulary": 3, **SIZES},
    **{
        name: {"vocabulary": 6, **dict.fromkeys(SPLITS, 10)}
        for name in ("wikitext-2", "wikitext-103", "ptb")
    },
    **{name: {"vocabulary": 6} for name in ("lm1b", "lm1b, <S> at both ends")},
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder without a network; published sizes are those of the texts that these tests write."""
    monkeypatch.delenv("TXL_DATA", raising=False)
    monkeypatch.setattr(published_corpora, "CHARACTERS", SIZES)
    for name, sizes in PUBLISHED_HERE.items():
        monkeypatch.setitem(PUBLISHED, name, sizes)
    monkeypatch.setattr(published_corpora, "fetch", lambda *_: None)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def config_of(root: Path, name: str, level: str = "byte", **options: Any) -> DataConfig:
    return data_class(name)(
        name=name, level=level, root=str(root), cache_dir=str(root.parent / "cache"), **options
    )


def in_splits(text: Any) -> list[Any]:
    return [text[:900], text[900:950], text[950:]]


def split_files(pattern: str, contents: list[bytes]) -> dict[str, bytes]:
    return {pattern.format(split): content for split, content in zip(SPLITS, contents, strict=True)}


# A corpus is its name, its symbols in the order of their numbers, and the symbols of each split's tokens, joined.
ENWIK8 = ("aé\nb\n".encode() * 200)[:1000]
KEPT = ("enwik8, newlines kept", "\na\xc3\xa9b", in_splits(ENWIK8.decode("latin-1")))
DROPPED = ("enwik8, newlines dropped", "a\xc3\xa9b", [text.replace("\n", "") for text in KEPT[2]])
TEXT8 = (b" ab" * 334)[:1000]
WORDS = b" = A = \n\n the cat <unk> the \n"
SIX_WORDS = ("<eos>", "=", "the", "A", "cat", "<unk>")
WORD_TOKENS = ["= A = <eos> <eos> the cat <unk> the <eos>"] * 3
SHARDS = {
    f"lm1b/1b/training/news.en-{i:05d}-of-00100": b"the cat\nthe dog sat\n\n" for i in range(1, 100)
}
HELD_OUT = {"lm1b/1b/held-out/news.en.heldout-00000-of-00050": b"a dog sat\nthe cat\n"}
LISTED = {"lm1b/1b_word_vocab.txt": b"<S>\n<UNK>\ncat\na\nb\nc\n"}
SIX_OF_LM1B, LISTED_SYMBOLS = (
    ("<S>", "<UNK>", "the", "cat", "dog", "sat"),
    ("<S>", "<UNK>", "cat", "a", "b", "c"),
)
STARTS = [" ".join(["<S> the cat <S> the dog sat"] * 99), *["<S> <UNK> dog sat <S> the cat"] * 2]
BOTH = [
    " ".join(["<S> the cat <S> <S> the dog sat <S>"] * 99),
    *["<S> <UNK> dog sat <S> <S> the cat <S>"] * 2,
]
ONE_FILE = split_files("lm1b/{}.txt", [b"the cat dog sat\n" * 3, b"a\n", b"the\n"])
WHOLE = [" ".join(["<S> the cat dog sat"] * 3), "<S> <UNK>", "<S> the"]
LISTED_TOKENS = [
    " ".join(["<S> <UNK> cat <S> <UNK> <UNK> <UNK>"] * 99),
    *["<S> a <UNK> <UNK> <S> <UNK> cat"] * 2,
]
LEVELS = {"enwik8": "byte", "text8": "char", "wikipedia-2015": "char"}
WIKIPEDIA_TXT = "wikipedia-2015/wikipedia-2015.txt"
WIKIPEDIA = ("wikipedia-2015", ("<unk>", " ", "a", "b"), in_splits(TEXT8.decode()))
LAYOUTS: list[tuple[str, dict[str, bytes], Any, dict[str, Any]]] = [
    ("enwik8", {"enwik8/enwik8": ENWIK8}, KEPT, {"newlines": "kept"}),
    (
        "enwik8",
        {"enwik8/train.txt": b"-"} | split_files("enwik8/{}.txt.raw", in_splits(ENWIK8)),
        DROPPED,
        {},
    ),
    ("text8", {"text8/text8": TEXT8}, ("text8", " ab", in_splits(TEXT8.decode())), {}),
    ("wikipedia-2015", {WIKIPEDIA_TXT: TEXT8}, WIKIPEDIA, {}),
    ("wikipedia-2015", {f"{WIKIPEDIA_TXT}.xz": lzma.compress(TEXT8)}, WIKIPEDIA, {}),
    *(
        (
            folder.split("/")[0],
            split_files(folder, [WORDS] * 3),
            (folder.split("/")[0], SIX_WORDS, WORD_TOKENS),
            {},
        )
        for folder in (
            "wikitext-2/{}.txt",
            "wikitext-103/wiki.{}.tokens",
            "ptb/{}.txt",
            "ptb/ptb.{}.txt",
        )
    ),
    ("lm1b", SHARDS | HELD_OUT, ("lm1b", SIX_OF_LM1B, STARTS), {}),
    (
        "lm1b",
        SHARDS | HELD_OUT,
        ("lm1b, <S> at both ends", SIX_OF_LM1B, BOTH),
        {"sentence_marks": "both"},
    ),
    ("lm1b", ONE_FILE, ("lm1b", SIX_OF_LM1B, WHOLE), {}),
    ("lm1b", SHARDS | HELD_OUT | LISTED, ("lm1b", LISTED_SYMBOLS, LISTED_TOKENS), {}),
]


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 22])
@pytest.mark.parametrize("given", LAYOUTS)
def test_every_layout_is_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, given: Any, chunk_bytes: int
) -> None:
    name, layout, (own_name, symbols, texts), options = given
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    files(root, layout)
    options = {"level": LEVELS.get(name, "word"), **options}
    config = config_of(root, name, **options)
    if chunk_bytes == 7:  # the other way to the folder
        monkeypatch.setenv("TXL_DATA", str(config.root))
        config.root = None
    corpus = load_corpus(config)
    assert (corpus.name, corpus.vocabulary.symbols) == (own_name, tuple(symbols))
    space, again = " " * (options["level"] == "word"), load_corpus(config, corpus.vocabulary)
    for split, text in zip(SPLITS, texts, strict=True):
        tokens = corpus.splits[split]
        assert space.join(symbols[token] for token in tokens) == text
        assert np.array_equal(again.splits[split], tokens)
        if name == "lm1b":
            every = 2 if options.get("sentence_marks") == "both" else 1
            assert np.array_equal(corpus.sentences[split], np.flatnonzero(tokens == 0)[::every])
    assert tokens.dtype == np.dtype(np.int32 if options["level"] == "word" else np.uint8)
    assert corpus.cutoffs == (), "the standard ones are beyond these vocabularies"


OTHERS = [
    (
        "wikitext-2",
        [WORDS, WORDS * 2, WORDS],
        r"wikitext-2: .* has 20 \(valid\) where 10 are published",
    ),
    (
        "wikitext-2",
        [WORDS.replace(b"cat", b"the"), WORDS, WORDS],
        r"has 5 \(vocabulary\) where 6 are published",
    ),
    ("enwik8", {"enwik8/enwik8": ENWIK8[:-1]}, "enwik8 has 999 bytes where 1,000 are published"),
    (
        "lm1b",
        dict([*SHARDS.items()][1:]) | HELD_OUT,
        "data=lm1b: the download in .*lm1b is not complete",
    ),
    ("enwik8", {"enwik8/train.txt": b"-"}, "data=enwik8: the download in .*enwik8 is not complete"),
    (
        "wikipedia-2015",
        {f"{WIKIPEDIA_TXT}.xz": lzma.compress(b"a b" * 99)[:-20]},
        "txt.xz: cannot be read",
    ),
]


@pytest.mark.parametrize(("name", "layout", "words"), OTHERS)
def test_a_corpus_that_is_not_the_published_one_is_refused(
    root: Path, name: str, layout: Any, words: str
) -> None:
    files(root, layout if isinstance(layout, dict) else split_files(f"{name}/{{}}.txt", layout))
    with pytest.raises(UserError, match=words):
        load_corpus(config_of(root, name, LEVELS.get(name, "word")))
    assert list((root.parent / "cache").glob("*")) == []


def test_a_data_folder_must_be_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXL_DATA", "missing")
    with pytest.raises(UserError, match=r"^TXL_DATA=missing: must be a folder"):
        load_corpus(data_class("enwik8")(name="enwik8", cache_dir=str(root / "cache")))


def test_sentences_of_lm1b_are_shuffled_in_training_only(root: Path) -> None:
    files(root, SHARDS | {name: text * 30 for name, text in HELD_OUT.items()})
    data, lengths = (
        config_of(root, "lm1b", "word", batch_size=4, segment_len=5),
        EvaluationConfig(2, 5),
    )
    module = StreamsDataModule(data, lengths)
    train, valid = module.train_dataloader(), module.val_dataloader()
    assert {type(train), type(valid)} == {ShuffledStreams}
    assert (train.seed, valid.seed) == (data.seed, None)
    other_seed = StreamsDataModule(replace(data, seed=2), lengths).train_dataloader()
    assert not torch.equal(other_seed[0].tokens, train[0].tokens)
    with pytest.raises(UserError, match=r"data.batch_size=200: gives too few of"):
        StreamsDataModule(replace(data, batch_size=200, segment_len=2), lengths)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sources, "CHUNK_BYTES"), (checksums, "BLOCK_BYTES")):
        monkeypatch.setattr(module, name, 1 << 15)
    path, peaks = root / "text.txt", []
    for megabytes in (1, 3):
        path.write_bytes(
            (b"the quick brown fox jumps over the lazy dog\n" * 24000)[: 1 << 20] * megabytes
        )
        tracemalloc.start()
        load_corpus(config_of(root, "file", "word", path=str(path)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < 16 << 20
    assert peaks[1] < peaks[0] + (1 << 19)


def zipped(name: str, content: bytes = b"some text\n" * 1000) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No official address can be reached."""
    closed = "http://127.0.0.1:9"
    for corpus, (_, *more) in ADDRESSES.items():
        monkeypatch.setitem(ADDRESSES, corpus, (f"{closed}/archive.zip", *more))
    monkeypatch.setenv("HF_ENDPOINT", closed)
    monkeypatch.delenv("TXL_DATA", raising=False)


def serve(monkeypatch: pytest.MonkeyPatch, corpus: str, archive: Path, content: bytes) -> None:
    archive.parent.mkdir()
    archive.write_bytes(content)
    monkeypatch.setitem(ADDRESSES, corpus, (archive.as_uri(), *ADDRESSES[corpus][1:]))


@pytest.mark.usefixtures("unreachable")
def test_a_corpus_that_is_not_there_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = b" a b <unk> \n b a \n" * 9
    files(tmp_path / "made/simple-examples/data", {f"ptb.{split}.txt": words for split in SPLITS})
    monkeypatch.setitem(PUBLISHED, "ptb", {"vocabulary": 4})
    content = Path(
        shutil.make_archive(str(tmp_path / "made/packed"), "gztar", tmp_path / "made")
    ).read_bytes()
    serve(monkeypatch, "ptb", tmp_path / "server/simple-examples.tgz", content)
    config = DataConfig(name="ptb", level="word", cache_dir=str(tmp_path))
    with pytest.raises(
        UserError, match=r"simple-examples.tgz has the md5 .*, expected is 30177ea32e27c525793142"
    ):
        load_corpus(config)
    monkeypatch.setitem(
        CHECKSUMS, "simple-examples.tgz", f"sha256:{hashlib.sha256(content).hexdigest()}"
    )
    corpus = load_corpus(config)
    assert corpus.vocabulary.decode(corpus.splits["train"][:7]) == "a b <unk>\nb a\n"
    names = {"ptb", *(f"ptb.{split}.txt" for split in SPLITS)}
    assert {path.name for path in (tmp_path / "downloads").rglob("*")} == names
    shutil.rmtree(tmp_path / "server")
    assert load_corpus(config).checksum == corpus.checksum


ARCHIVES = [
    (zipped("enwik8"), "enwik8 has the md5 .*, expected is a1fa5ffddb56f4953e226637dabbb36a"),
    (zipped("other"), "enwik8.zip lacks enwik8"),
    (zipped("enwik8")[:-30], "enwik8.zip cannot be downloaded and unpacked"),
    (zipped("../../enwik8"), "enwik8 has the md5"),  # its folders are ignored
    (b"<html>please log in", "enwik8.zip cannot be downloaded and unpacked"),
]


@pytest.mark.parametrize(("content", "words"), ARCHIVES)
@pytest.mark.usefixtures("unreachable")
def test_bad_archives_leave_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    serve(monkeypatch, "enwik8", tmp_path / "server/enwik8.zip", content)
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=words):
        load_corpus(config_of(tmp_path / "data", "enwik8"))
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("name", ["enwik8", "text8", "wikitext-2", "ptb", "lm1b", "wikipedia-2015"])
@pytest.mark.usefixtures("unreachable")
def test_without_network_one_line_names_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    level = LEVELS.get(name, "word")
    words = rf"data={name}: not in .*{name}, and .*; put .* data.root or TXL_DATA"
    with pytest.raises(UserError, match=words) as error:
        load_corpus(data_class(name)(name=name, level=level, cache_dir=str(tmp_path / "cache")))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_wikitext_comes_through_datasets_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "train": ["", " = A = \n", " the a \n"],
        "validation": [" a \n"],
        "test": ["", " the \n"],
    }
    made = {split: datasets.Dataset.from_dict({"text": text}) for split, text in rows.items()}
    known = {
        (WIKITEXT, "wikitext-2-v1", REVISION): made,
        (WIKITEXT, "wikitext-103-v1", REVISION): {},
    }
    asked: list[str] = []
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda *_, revision, timeout: asked.append(revision)
    )
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *given, revision: known[(*given, revision)]
    )
    fetch("wikitext-2", tmp_path / "wikitext-2", "its files")
    contents = [(tmp_path / f"wikitext-2/wiki.{split}.tokens").read_text() for split in SPLITS]
    assert contents == ["\n = A = \n the a \n", " a \n", "\n the \n"]
    with pytest.raises(KeyError):
        fetch("wikitext-103", tmp_path / "wikitext-103", "its files")
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext-2"], "nothing half-written"
    assert (asked, len(REVISION)) == ([REVISION] * 2, 40)
    assert all(address.startswith("https://") for address, *_ in ADDRESSES.values())
