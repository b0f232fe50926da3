"""Files of the user: splits by their names, words that are rare, formats, encodings, and what is no text."""

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pytest

from tests.data.helpers import corpus_of, files, text_of
from tests.fixtures import Output
from txl_lightning.data.corpus import SPLITS
from txl_lightning.errors import OptionError, UserError

SPLIT_TEXTS = {"train": "to be or not to be\n" * 90, "valid": "that is the question\n" * 9, "test": "to sleep\n" * 9}


NAMES = [
    ("train.txt", "valid.txt", "test.txt"),
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("training-00000-of-00001.txt", "dev-00000-of-00001.txt", "test-00000-of-00001.txt"),
    ("a/train/1.txt", "a/validation/1.txt", "a/test/1.txt"),
    ("my_Train_set.txt", "my_VAL.log", "my_testset.md"),
    ("myTrain.txt", "myDev.txt", "myTest.txt"),
    ("trn.txt", "val.txt", "tst.txt"),
    ("tr.txt", "va.txt", "te.txt"),
    ("lm-eval/train.txt", "lm-eval/valid.txt", "lm-eval/test.txt"),
    ("test-runs/train/1.txt", "test-runs/validation/1.txt", "test-runs/test/1.txt"),
]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("given", ["folder", "list", "mapping"])
def test_files_that_are_splits_are_splits(tmp_path: Path, names: tuple[str, ...], given: str) -> None:
    listed = files(tmp_path / "texts", dict(zip(names, SPLIT_TEXTS.values(), strict=True)))
    ways = {"folder": str(tmp_path / "texts"), "list": listed[::-1], "mapping": dict(zip(SPLITS, listed, strict=True))}
    corpus = corpus_of(ways[given], tmp_path)
    assert {split: text_of(corpus, split) for split in SPLITS} == SPLIT_TEXTS


def test_a_missing_split_is_cut_from_train_and_said(tmp_path: Path, capsys: Output) -> None:
    train, test = files(tmp_path, {"train.txt": "train " * 100, "test.txt": "held out"})
    said = "valid cut from the end of train, bytes of each split: train 568, valid 32, test 8"
    for paths in ([train, test], {"train": train, "test": test}):
        corpus = corpus_of(paths, tmp_path)
        assert (text_of(corpus, "train", "valid"), text_of(corpus, "test")) == ("train " * 100, "held out")
        assert said in capsys.readouterr().err
    swapped = corpus_of({"train": test, "test": train}, tmp_path)  # a mapping decides, not the names
    assert (text_of(swapped, "train", "valid"), text_of(swapped, "test")) == ("held out", "train " * 100)


def test_other_files_are_joined_and_said_with_their_bytes(tmp_path: Path, capsys: Output) -> None:
    """A folder of code has train.py and test_model.py; they are no splits of it."""
    files(tmp_path / "code", {"train.py": "a" * 10, "test_model.py": "b" * 10, "model.py": "c" * 80})
    assert text_of(corpus_of(str(tmp_path / "code"), tmp_path)) == "c" * 80 + "b" * 10 + "a" * 10
    assert "joined and cut, bytes of each split: train 90, valid 5, test 5" in capsys.readouterr().err
    files(tmp_path / "data", {"train.txt": "a" * 90, "test.txt": "b" * 10, "README": "c", ".git/x": "d"})
    assert text_of(corpus_of(str(tmp_path / "data"), tmp_path), "test") == "b" * 10
    assert "README say no split; left out" in capsys.readouterr().err


def test_languages_are_no_splits(tmp_path: Path) -> None:
    files(tmp_path / "texts", {"tr.txt": "merhaba " * 20, "te.txt": "x " * 20, "en.txt": "hello " * 20})
    assert len(text_of(corpus_of(str(tmp_path / "texts"), tmp_path))) == 320


def test_a_folder_that_is_a_split_counts_before_names(tmp_path: Path) -> None:
    files(tmp_path / "texts", {"train/a.txt": "a" * 90, "test/train-station.txt": "b" * 9, "test/b.txt": "c"})
    assert sorted(text_of(corpus_of(str(tmp_path / "texts"), tmp_path), "test")) == [*"bbbbbbbbbc"]


SETS = [
    ("{}/{}-00000.txt", ("en", "fr"), "en/*-.txt, fr/*-.txt"),
    ("ptb{}.{}.txt", ("", ".char"), "ptb.*.txt, ptb.char.*.txt"),
]


@pytest.mark.parametrize(("name", "sets", "said"), SETS)
def test_sets_of_files_in_a_folder_are_named(tmp_path: Path, capsys: Any, name: str, sets: Any, said: str) -> None:
    names = [name.format(kind, split) for kind in sets for split in ("train", "test")]
    files(tmp_path / "texts", dict.fromkeys(names, "x " * 50))
    corpus_of(str(tmp_path / "texts"), tmp_path)
    assert f"2 sets of files are joined: {said}" in capsys.readouterr().err


UNCLEAR = [
    (["train.txt", "test.txt", "more.txt"], "files that are splits and more.txt, which is none; name the split"),
    (["test.txt", "valid.txt"], r"name the splits: 'data.path={train:PATH,"),
    ({"train": "train.txt", "test": "empty.txt"}, "must not be empty"),
    ({"valid": "valid.txt"}, "must be a file, a folder, a list"),
]


@pytest.mark.parametrize(("path", "words"), UNCLEAR)
def test_unclear_splits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path, {f"{name}.txt": "a" * 90 for name in ("train", "valid", "test", "more")} | {"empty.txt": ""})
    with pytest.raises(OptionError, match=words):
        corpus_of(path, tmp_path)


def test_rare_words_train_the_unknown_one_of_known_share(tmp_path: Path, capsys: Output) -> None:
    train = "to be or not to be or not once\n" * 1 + "to be\n" * 9
    listed = files(tmp_path, {"train.txt": train, "valid.txt": "to be new\n" * 5, "test.txt": "new be\n" * 5})
    corpus = corpus_of(listed, tmp_path, level="word")
    assert corpus.vocabulary.decode(corpus.splits["train"][:10]) == "to be or not to be or not <unk>\n"
    assert corpus.unknown == corpus.facts()["unknown"] == {"train": 1 / 37, "valid": 1 / 4, "test": 1 / 3}
    assert corpus.unknown_share("test") == " with 33.3% <unk> (5)"
    assert "never trained" not in capsys.readouterr().err
    untrained = corpus_of(listed, tmp_path, level="word", min_count=1)
    assert untrained.unknown == {"train": 0, "valid": 1 / 4, "test": 1 / 3}
    said = "<unk> is never trained (0.0% of train, 25.0% of valid, 33.3% of test); data.min_count=2 makes rare"
    assert said in capsys.readouterr().err
    characters = corpus_of(listed, tmp_path, level="char", min_count=2)
    assert characters.unknown["train"] == train.count("c") / len(train)
    with pytest.raises(OptionError, match=r"data\.min_count=2: is for data\.level=word or char, not byte"):
        corpus_of(listed, tmp_path, min_count=2)


NO_WORDS = [
    ("床前明月光疑是地上霜舉頭望明月\n" * 100, "a word has 46 bytes on average; use data.level=bpe, char or byte"),
    ("".join(f"字{n}文\n" for n in range(900)), "812 of 812 training words are <unk>, .* use data.level=bpe"),
    ("all on one line " * 500, "the valid split is empty: cuts are at the ends of lines, .*: use data.level=bpe"),
]


@pytest.mark.parametrize(("text", "words"), NO_WORDS)
def test_a_text_that_cannot_be_words_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (path,) = files(tmp_path, {"text.txt": text})
    with pytest.raises(UserError, match=words):
        corpus_of(path, tmp_path, level="word")
    assert len(corpus_of(path, tmp_path, level="char").splits["valid"]) > 0


TEXT = "".join(f"line {n} é\n" for n in range(60))
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "text.gz": gzip.compress,
    "text.txt": gzip.compress,  # by its contents
    "text.bz2": bz2.compress,
    "text.xz": lzma.compress,
    "text.zst": partial(pyarrow.compress, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_text_is_one_document(tmp_path: Path, name: str, encoding: str) -> None:
    corpus = corpus_of(files(tmp_path, {name: COMPRESSED[name](TEXT.encode(encoding))}), tmp_path)
    assert text_of(corpus) == TEXT
    assert sum(len(corpus.documents[split]) for split in SPLITS) == 3  # cuts go through it


def test_of_a_folder_texts_are_read_and_the_rest_is_named(tmp_path: Path, capsys: Output) -> None:
    texts: dict[str, str | bytes] = {"a.txt": "a" * 50, "b.txt.gz": gzip.compress(b"b" * 50)}
    others: dict[str, str | bytes] = {"c.png": b"\x89PNG\r\n\x1a\nx", "d.dat": b"x\0y", "__pycache__/e.pyc": b"x"}
    files(tmp_path / "texts", {**texts, **others, ".git/f": "f"})
    assert text_of(corpus_of(str(tmp_path / "texts"), tmp_path)) == "a" * 50 + "b" * 50
    assert "c.png, d.dat: left out; c.png must be a text, not a picture" in capsys.readouterr().err


def test_links_are_followed_and_none_is_lost_or_read_twice(tmp_path: Path) -> None:
    files(tmp_path, {"elsewhere/a.txt": "to be or not\n" * 90, "texts/test/b.txt": "that is the question\n" * 9})
    (tmp_path / "texts" / "train").symlink_to(tmp_path / "elsewhere")
    assert text_of(corpus_of(str(tmp_path / "texts"), tmp_path), "train", "valid") == "to be or not\n" * 90
    link = tmp_path / "texts" / "train" / "c.txt"
    for target, words in (
        ("nowhere", r"train/c\.txt cannot be read \(No such"),
        ("a.txt", r"has a link to a file that"),
        (tmp_path, r"twice, by a link"),
    ):
        link.symlink_to(target)
        with pytest.raises(OptionError, match=words):
            corpus_of(str(tmp_path / "texts"), tmp_path)
        link.unlink()


READ_BY_NOBODY = """
import os, sys
from txl_lightning.config.schemas import FileData
from txl_lightning.data.own_files import file
os.setgid(65534), os.setuid(65534)  # the interpreter's files need not be readable to all
file(FileData(name="file", path=sys.argv[1], cache_dir="/nowhere"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives its place to a user who may not read")
@pytest.mark.parametrize("locked", ["", "sub", "sub/b.txt"])
def test_what_may_not_be_read_is_named(locked: str) -> None:
    with TemporaryDirectory() as name:  # below a folder that others may read, unlike that of pytest
        folder = Path(name) / "texts"
        files(folder, {"a.txt": "a" * 50, "sub/b.txt": "b" * 50})
        Path(name).chmod(0o755)
        (folder / locked).chmod(0)
        ended = subprocess.run([sys.executable, "-c", READ_BY_NOBODY, folder], capture_output=True, text=True)
    which = f"{folder / locked} " if locked else ""
    assert f"data.path={folder}: {which}cannot be read (Permission denied)" in ended.stderr.splitlines()[-1]
