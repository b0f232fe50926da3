"""The corpora of the paper in every layout of a data folder, at sizes of a test."""

import lzma
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import files
from txl_lightning.config.schemas import CONF, DataConfig, EvaluationConfig
from txl_lightning.data import benchmarks, reading
from txl_lightning.data.benchmarks import PUBLISHED
from txl_lightning.data.corpus import CORPORA, SPLITS, Corpus, load_corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.sources import Published
from txl_lightning.data.streams import ShuffledStreams
from txl_lightning.errors import OptionError, UserError

WORDS = b" = A = \n\n the cat <unk> the \n"
ORDER_OF_WORDS = ("<eos>", "=", "the", "A", "cat", "<unk>")


SIZES = {"train": 900, "valid": 50, "test": 50}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder without a network; published sizes are those of the texts that these tests write."""
    monkeypatch.delenv("TXL_DATA", raising=False)
    monkeypatch.setattr(benchmarks, "CHARACTERS", SIZES)
    published = {
        "enwik8, newlines kept": Published(5, SIZES),
        "enwik8, newlines dropped": Published(4),
        "text8": Published(3, SIZES, slack=2),
        **dict.fromkeys(("wikitext-2", "wikitext-103", "ptb"), Published(6, dict.fromkeys(SPLITS, 10))),
        "lm1b": Published(6),
    }
    for name, sizes in published.items():
        monkeypatch.setitem(PUBLISHED, name, sizes)
    monkeypatch.setattr(benchmarks, "fetch", lambda name, folder: None)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def config_of(root: Path, name: str, level: str = "byte", **options: object) -> DataConfig:
    return DataConfig(name=name, level=level, root=str(root), cache_dir=str(root.parent / "cache"), **options)


def load(root: Path, name: str, level: str = "byte", **options: object) -> Corpus:
    return load_corpus(config_of(root, name, level, **options))


def in_splits(text: bytes) -> dict[str, bytes]:
    return {"train": text[:900], "valid": text[900:950], "test": text[950:]}


ENWIK8 = ("aé\nb\n".encode() * 200)[:1000]  # 5 kinds of bytes
NUMBERS = {s: " ".join("\n" if b == 10 else str(b) for b in part).encode() for s, part in in_splits(ENWIK8).items()}
LAYOUTS = {
    "raw": {"enwik8/enwik8": ENWIK8},
    "prepared": {f"enwik8/{split}.txt": NUMBERS[split] for split in SPLITS},
    "both": {f"enwik8/{s}.txt": b"not read" for s in SPLITS}
    | {f"enwik8/{s}.txt.raw": part for s, part in in_splits(ENWIK8).items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk_bytes", [7, 1 << 22])
def test_enwik8_is_the_same_from_every_layout(
    root: Path, layout: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    write(root, LAYOUTS[layout])
    kept, dropped = load(root, "enwik8", newlines="kept"), load(root, "enwik8")
    assert (kept.name, dropped.name) == ("enwik8, newlines kept", "enwik8, newlines dropped")
    assert kept.vocabulary.symbols == ("\n", "a", "\xc3", "\xa9", "b")
    assert dropped.vocabulary.symbols == ("a", "\xc3", "\xa9", "b")
    for split, part in in_splits(ENWIK8).items():
        assert kept.vocabulary.decode_bytes(kept.splits[split]) == part
        assert dropped.vocabulary.decode_bytes(dropped.splits[split]) == part.replace(b"\n", b"")


TEXT8 = (b" ab" * 334)[:1000]


@pytest.mark.parametrize("layout", ["raw", "prepared"])
def test_text8_is_the_same_from_both_layouts_but_for_the_spaces_that_the_script_strips(root: Path, layout: str) -> None:
    stripped = {split: part.decode().strip() for split, part in in_splits(TEXT8).items()}
    apart = {f"text8/{s}.txt": " ".join(text.replace(" ", "_")).encode() for s, text in stripped.items()}
    write(root, {"text8/text8": TEXT8} if layout == "raw" else apart)
    corpus = load(root, "text8", "char")
    assert (len(corpus.vocabulary), corpus.vocabulary.unknown) == (3, -1)
    for split, part in in_splits(TEXT8).items():
        expected = part.decode() if layout == "raw" else stripped[split]
        assert corpus.vocabulary.decode(corpus.splits[split]) == expected


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103", "ptb"])
@pytest.mark.parametrize("pattern", ["{}.txt", "wiki.{}.tokens"])
def test_word_corpora_from_both_namings(root: Path, name: str, pattern: str) -> None:
    pattern = "ptb.{}.txt" if name == "ptb" and pattern != "{}.txt" else pattern
    write(root, {f"{name}/{pattern.format(split)}": WORDS for split in SPLITS})
    corpus = load(root, name, "word")
    assert corpus.name == name
    assert corpus.vocabulary.symbols == ORDER_OF_WORDS
    assert corpus.splits["test"].tolist() == [1, 3, 1, 0, 0, 2, 4, 5, 2, 0]
    assert isinstance(corpus.splits["train"], np.memmap)
    assert corpus.splits["train"].dtype == np.int32


def test_sizes_that_are_not_the_published_ones_are_an_error_that_shows_both(root: Path) -> None:
    write(root, {f"wikitext-2/{split}.txt": WORDS for split in SPLITS} | {"wikitext-2/valid.txt": WORDS * 2})
    with pytest.raises(UserError, match=r"wikitext-2: .* has 20 tokens in valid where 10 are published"):
        load(root, "wikitext-2", "word")
    write(root, {"wikitext-2/train.txt": WORDS.replace(b"cat", b"the"), "wikitext-2/valid.txt": WORDS})
    with pytest.raises(UserError, match="has a vocabulary of 5 where 6 are published"):
        load(root, "wikitext-2", "word")
    write(root, {"enwik8/enwik8": ENWIK8[:-1]})
    with pytest.raises(UserError, match=r"enwik8 has 999 bytes where 1,000 are published"):
        load(root, "enwik8")
    assert list((root.parent / "cache").iterdir()) == []


def test_what_is_published() -> None:
    wikitext = {"valid": 217_646, "test": 245_569}
    assert PUBLISHED["wikitext-103"] == Published(267_735, {"train": 103_227_021, **wikitext})
    assert PUBLISHED["wikitext-2"] == Published(33_278, {"train": 2_088_628, **wikitext})
    assert PUBLISHED["ptb"] == Published(10_000, {"train": 929_589, "valid": 73_760, "test": 82_430})
    assert PUBLISHED["enwik8, newlines dropped"].vocabulary == 204
    characters = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
    assert PUBLISHED["enwik8, newlines kept"] == Published(205, characters)
    assert PUBLISHED["text8"] == Published(27, characters, slack=2)
    assert PUBLISHED["lm1b"].vocabulary == 793_471


def test_a_prefix_is_used_only_on_request_and_is_named(root: Path) -> None:
    shard = b"the cat sat\nthe dog sat\nthe end\n" * 20
    write(root, {"enwik8/enwik8.prefix": ENWIK8, "text8/text8.prefix": TEXT8, "lm1b/heldout-00010-00011.tokens": shard})
    levels = {"enwik8": "byte", "text8": "char", "lm1b": "word"}
    for name, level in levels.items():
        with pytest.raises(OptionError, match=rf"data={name}: .* only a part of it: data.prefix=true uses that"):
            load(root, name, level)
    corpora = [load(root, name, level, prefix=True) for name, level in levels.items()]
    names = ["enwik8.prefix, newlines dropped", "text8.prefix", "lm1b.heldout-00010-00011"]
    assert [corpus.name for corpus in corpora] == names
    assert [len(corpora[1].splits[split]) for split in SPLITS] == [900, 50, 50]
    for name in ("ptb", "wikitext-2"):
        with pytest.raises(OptionError, match=rf"data.prefix=True: must be false for data={name}"):
            load(root, name, "word", prefix=True)
    (root / "text8/text8.prefix").unlink()
    with pytest.raises(OptionError, match=r"data.prefix=True: needs text8.prefix in .*text8"):
        load(root, "text8", "char", prefix=True)


def test_the_wikitext_prefix_ends_with_its_last_whole_line_and_may_have_the_counted_words(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, {"wikitext-103/wiki.train.prefix.tokens": WORDS + b" the c"})
    write(root, {f"wikitext-103/wiki.{split}.tokens": WORDS for split in ("valid", "test")})
    with pytest.raises(UserError, match="10 tokens in valid where 217,646 are published"):
        load(root, "wikitext-103", "word", prefix=True)
    sizes = {"valid": 10, "test": 10}
    monkeypatch.setitem(PUBLISHED, "wikitext-103.prefix", Published(None, sizes))
    monkeypatch.setitem(PUBLISHED, "wikitext-103.prefix, counted words", Published(7, sizes))
    corpus = load(root, "wikitext-103", "word", prefix=True)
    assert (len(corpus.splits["train"]), corpus.vocabulary.symbols) == (10, ORDER_OF_WORDS)
    write(root, {"wikitext-103/train-word-counts.txt": b"the 500000\n= 9\nA 8\ncat 7\ndog 7\nmadeupword0000 0\n"})
    corpus = load(root, "wikitext-103", "word", prefix=True)
    assert corpus.name == "wikitext-103.prefix"
    assert corpus.vocabulary.symbols == ("<eos>", "the", "<unk>", "=", "A", "cat", "dog")
    assert corpus.splits["train"].tolist() == [3, 4, 3, 0, 0, 1, 5, 2, 1, 0]


def lm1b_files(n_shards: int) -> dict[str, bytes]:
    folder = "lm1b/1-billion-word-language-modeling-benchmark-r13output"
    shards = {
        f"{folder}/training-monolingual.tokenized.shuffled/news.en-{i:05d}-of-00100": b"the cat\nthe dog sat\n\n"
        for i in range(1, n_shards + 1)
    }
    held_out = f"{folder}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
    return shards | {held_out: b"a dog sat\nthe cat\n" * 30}


@pytest.mark.parametrize(
    ("marks", "name", "valid", "shard", "starts"),
    [
        ("start", "", [0, 1, 4, 5, 0, 2], [0, 2, 3, 0, 2, 4, 5], [0, 3]),
        ("both", ", <S> at both ends", [0, 1, 4, 5, 0, 0], [0, 2, 3, 0, 0, 2, 4, 5, 0], [0, 4]),
    ],
)
def test_sentences_of_lm1b_have_a_mark_at_their_start_or_at_both_ends(
    root: Path, marks: str, name: str, valid: list[int], shard: list[int], starts: list[int]
) -> None:
    write(root, lm1b_files(99))
    corpus = load(root, "lm1b", "word", sentence_marks=marks)
    assert corpus.name == f"lm1b, valid = test = heldout-00000{name}"
    assert corpus.vocabulary.symbols == ("<S>", "<UNK>", "the", "cat", "dog", "sat")
    assert corpus.splits["train"].tolist() == shard * 99
    assert corpus.sentences["train"].tolist() == [i * len(shard) + start for i in range(99) for start in starts]
    assert corpus.cutoffs == (), "the standard ones are beyond this vocabulary"
    given = load_corpus(config_of(root, "lm1b", "word", sentence_marks=marks), corpus.vocabulary)
    assert corpus.splits["valid"][:6].tolist() == given.splits["valid"][:6].tolist() == valid


def test_sentences_of_lm1b_are_shuffled_in_training_only(root: Path) -> None:
    write(root, lm1b_files(99))
    data, lengths = config_of(root, "lm1b", "word", batch_size=4, segment_len=5), EvaluationConfig(2, 5)
    module = StreamsDataModule(data, lengths)
    train, valid = module.train_dataloader(), module.val_dataloader()
    assert isinstance(train, ShuffledStreams)
    assert isinstance(valid, ShuffledStreams)
    assert (train.shuffle, valid.shuffle) == (True, False)
    other_seed = StreamsDataModule(replace(data, seed=2), lengths).train_dataloader()
    assert not torch.equal(other_seed[0].tokens, train[0].tokens)
    with pytest.raises(OptionError, match=r"data.batch_size=200: .*(too few|shorter than one segment)"):
        StreamsDataModule(replace(data, batch_size=200, segment_len=2), lengths)


def test_some_shards_of_lm1b_are_named_as_such_and_its_list_is_the_vocabulary(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PUBLISHED, "lm1b", Published(4))
    write(root, lm1b_files(3) | {"lm1b/1b_word_vocab.txt": b"<S>\n<UNK>\ncat\na\n"})
    with pytest.raises(OptionError, match=r"data=lm1b: .* has only a part of it"):
        load(root, "lm1b", "word")
    corpus = load(root, "lm1b", "word", prefix=True)
    assert corpus.name == "lm1b.3-of-99-shards, valid = test = heldout-00000"
    assert corpus.splits["valid"][:4].tolist() == [0, 3, 1, 1]
    write(root, {f"lm1b/{split}.txt": split.encode() * 9 + b"\na\n" for split in SPLITS})
    assert load(root, "lm1b", "word").name == "lm1b"


@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_wikipedia_2015_is_unpacked_and_leaves_no_copy(root: Path, level: str) -> None:
    text = '<doc title="Ä">\nÄ b c\n</doc>\n' * 40
    write(root, {"wikipedia-2015/wikipedia-2015.txt.xz": lzma.compress(text.encode())})
    corpus = load(root, "wikipedia-2015", level)
    assert corpus.name == "wikipedia-2015"
    assert "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS) == text
    write(root, {"wikipedia-2015/wikipedia-2015.txt.xz": lzma.compress(text.encode())[:-20]})
    with pytest.raises(UserError, match=r"wikipedia-2015.txt.xz: cannot be read"):
        load(root, "wikipedia-2015", level)
    assert len(list((root.parent / "cache").iterdir())) == 1


def test_a_root_that_is_not_there_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"data.root=.*nowhere: must be a folder"):
        load(root / "nowhere", "enwik8")
    monkeypatch.setenv("TXL_DATA", str(root / "nowhere"))
    with pytest.raises(OptionError, match=r"TXL_DATA=.*nowhere: must be a folder"):
        load_corpus(DataConfig(name="enwik8", cache_dir=str(root)))
    monkeypatch.setenv("TXL_DATA", str(root))
    write(root, {"enwik8/enwik8": ENWIK8})
    assert len(load_corpus(DataConfig(name="enwik8", cache_dir=str(root))).vocabulary) == 4


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("enwik", {}, "data=enwik: must be one of python-stdlib, file"),
        ("enwik8", {"level": "char"}, "data.level=char: must be byte for data=enwik8"),
        ("lm1b", {"level": "word", "sentence_marks": "none"}, "sentence_marks=none: must be start or both"),
        ("enwik8", {"newlines": "yes"}, "data.newlines=yes: must be dropped"),
        ("ptb", {"level": "byte"}, "data.level=byte: must be word or char for data=ptb"),
    ],
)
def test_impossible_choices_are_named(root: Path, name: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load(root, name, **options)


def test_every_corpus_is_a_choice() -> None:
    assert {path.stem for path in CONF.glob("data/*.yaml")} == {*CORPORA, "ptb-char"}


@pytest.mark.parametrize("level", ["byte", pytest.param("word", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_text(root: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1 << 15)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 15)
    path = root / "text.txt"
    peaks = []
    for megabytes in (1, 5):
        path.write_bytes((b"the quick brown fox jumps over the lazy dog\n" * 24000)[: 1 << 20] * megabytes)
        tracemalloc.start()
        load(root, "file", level, path=str(path))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The table of all characters, 9 bytes for each of 1.1 million, does not depend on the text.
    assert peaks[0] < 16 << 20
    assert peaks[1] < peaks[0] + (1 << 19)
