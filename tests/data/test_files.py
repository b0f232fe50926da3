"""Files of the user: which are splits by their names, which are left out or refused, and rare words."""

import gzip
import os
from pathlib import Path

import pytest

from tests.data.helpers import corpus_of, files, text_of
from tests.data.writers import JSON_LINES, csv_of
from txl_lightning.data.corpus import SPLITS
from txl_lightning.errors import OptionError, UserError

SPLIT_TEXTS = {
    "train": "to be or not to be\n" * 90,
    "valid": "that is the question\n" * 9,
    "test": "to sleep\n" * 9,
}
NAMES = [
    ("train.txt", "valid.txt", "test.txt"),
    ("train.txt", "held_out.txt", "test.txt"),
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("training-00000-of-00001.txt", "dev-00000-of-00001.txt", "test-00000-of-00001.txt"),
    ("a/train/1.txt", "a/validation/1.txt", "a/test/1.txt"),
    ("my_Train_set.txt", "myVal.log", "my_test_set.md"),
    ("lm-eval/train.txt", "lm-eval/valid.txt", "lm-eval/test.txt"),
    ("test-runs/train/1.txt", "test-runs/validation/1.txt", "test-runs/test/1.txt"),
]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", ["folder", "list", "mapping"])
def test_files_that_are_splits_are_splits(tmp_path, names, kind):
    folder = tmp_path / "texts"
    paths = files(
        folder,
        dict(zip(names, SPLIT_TEXTS.values(), strict=True)),
    )
    chosen = {
        "folder": str(folder),
        "list": paths[::-1],
        "mapping": dict(zip(SPLITS, paths, strict=True)),
    }
    corpus = corpus_of(chosen[kind], tmp_path)
    assert {split: text_of(corpus, split) for split in SPLITS} == SPLIT_TEXTS


def test_a_missing_split_is_cut_from_train_and_said(tmp_path, capsys):
    train, test = files(
        tmp_path,
        {"train.txt": "train " * 100, "test.txt": "held out"},
    )
    for paths in ([train, test], {"train": train, "test": test}):
        corpus = corpus_of(paths, tmp_path)
        assert text_of(corpus, "train", "valid") == "train " * 100
        assert text_of(corpus, "test") == "held out"
        assert "valid cut from the end of train" in capsys.readouterr().err


def test_files_without_splits_are_joined_and_said_with_their_names(tmp_path, capsys):
    texts = {
        "a.py": "a" * 10,
        "b.py": "b" * 10,
        "c/model.py": "c" * 80,
        "tr.txt": "d" * 20,
    }
    files(tmp_path / "code", texts)
    assert text_of(corpus_of(str(tmp_path / "code"), tmp_path)) == "".join(texts.values())
    assert "a.py, b.py, model.py and 1 more files joined and cut" in capsys.readouterr().err


UNCLEAR = [
    (
        ["train.txt", "test.txt", "more.txt"],
        "has split files and more.txt, whose name says no split; name the splits",
    ),
    (["test.txt", "valid.txt"], r"has no file for train; name the splits: 'data.path={train:PATH,"),
    (
        ["train.txt", "train_test.txt"],
        "has train_test.txt, which says test and train; name the splits",
    ),
    ({"train": "train.txt", "test": "empty.txt"}, "must not be empty"),
    ({"train": "*.txt", "valid": "valid.txt"}, "has valid.txt in train and in valid"),
    ({"valid": "valid.txt"}, "must be a file, a folder, a list of these, a pattern"),
    ("no*.txt", "must not be empty"),
    (
        "*.{txt,md}",
        r"must not be empty: it has no file with text; several patterns are a list, as in data\.path='\[",
    ),
    ("packed", r"has packed\.txt\.gz compressed and uncompressed"),
]


@pytest.mark.parametrize(("path", "words"), UNCLEAR)
def test_unclear_splits_are_refused(tmp_path, monkeypatch, path, words):
    monkeypatch.chdir(tmp_path)
    contents = {
        "packed/packed.txt.gz": gzip.compress(b"a" * 90),
        "empty.txt": "",
    }
    for name in ("train", "valid", "test", "more", "train_test", "packed/packed"):
        contents[f"{name}.txt"] = "a" * 90
    files(tmp_path, contents)
    with pytest.raises(OptionError, match=words):
        corpus_of(path, tmp_path)


def test_files_of_several_formats_are_refused(tmp_path):
    folder = tmp_path / "mixed"
    files(
        folder,
        {"a.txt": "a" * 50, "b.csv": csv_of()},
    )
    words = "several formats, csv and text: choose files by a pattern"
    with pytest.raises(OptionError, match=words):
        corpus_of(str(folder), tmp_path)
    as_text = corpus_of(str(folder), tmp_path, format="text")
    assert text_of(as_text).startswith("a" * 50 + "id,text")
    assert text_of(corpus_of(f"{folder}/*.csv", tmp_path)).startswith("record 0")


def test_what_is_left_out_of_a_folder_is_named(tmp_path, capsys):
    texts = {
        "a.txt": "a" * 50,
        "b.txt.gz": gzip.compress(b"b" * 50),
    }
    others = {
        "c.png": b"\x89PNG",
        "d.dat": b"x\0y",
        "__pycache__/e.pyc": b"x",
        ".git/f": "f",
    }
    files(tmp_path / "texts", texts | others)
    assert text_of(corpus_of(str(tmp_path / "texts"), tmp_path)) == "a" * 50 + "b" * 50
    assert "c.png, d.dat left out: no format that is read" in capsys.readouterr().err


def test_a_page_about_records_is_left_out(tmp_path, capsys):
    records = {
        "a.json.gz": gzip.compress(JSON_LINES * 9),
        "README.md": "about",
    }
    files(tmp_path / "c4", records)
    assert "about" not in text_of(corpus_of(str(tmp_path / "c4"), tmp_path))
    assert "README.md left out" in capsys.readouterr().err


NO_TEXT = [
    ("book.pdf", b"%PDF-1.7 " + bytes(99), "char", "no suffix that names a format; data.f"),
    (
        "text.txt",
        ("text" * 99).encode("utf-16"),
        "char",
        "must be a text, not UTF-16: iconv -f UTF-16",
    ),
    (
        "text.txt",
        ("text" * 99).encode("utf-16-le"),
        "byte",
        "must be a text, not binary; data.level",
    ),
    (
        "packed.txt",
        gzip.compress(b"text" * 9, mtime=0),
        "byte",
        "not compressed: name it FILE.gz, .bz2, .xz or",
    ),
    ("empty.txt", b"\xef\xbb\xbf", "byte", "must have text or ids: empty.txt is empty"),
    ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", "char", "of Git LFS: git lfs pull"),
    ("gbk.txt", b"x" * 9 + "中文".encode("gbk") * 99, "char", "byte 9 is 0xd6: convert it .* know"),
]


@pytest.mark.parametrize(("name", "content", "level", "words"), NO_TEXT)
def test_a_file_that_is_no_text_is_refused(tmp_path, name, content, level, words):
    (path,) = files(tmp_path, {name: content})
    with pytest.raises(UserError, match=words) as error:
        corpus_of(path, tmp_path, level=level)
    assert "\n" not in str(error.value)


def test_rare_words_train_the_unknown_one_of_known_share(tmp_path):
    train = "to be or not to be or not once\n" + "to be\n" * 9
    contents = {
        "train.txt": train,
        "valid.txt": "to be new\n" * 5,
        "test.txt": "new be\n" * 5,
    }
    paths = files(tmp_path, contents)
    corpus = corpus_of(paths, tmp_path, level="word")
    start = corpus.vocabulary.decode(corpus.splits["train"][:10])
    assert start == "to be or not to be or not <unk>\n"
    assert corpus.unknown == {"train": 1 / 37, "valid": 1 / 4, "test": 1 / 3}
    assert corpus.unknown_share("test") == " with 33.3% <unk> (5)"
    characters = corpus_of(paths, tmp_path, level="char", min_count=2)
    assert characters.unknown["train"] == train.count("c") / len(train)
    words = r"data\.min_count=2: is for data\.level=word or char, not byte"
    with pytest.raises(OptionError, match=words):
        corpus_of(paths, tmp_path, min_count=2)


def test_a_text_that_cannot_be_words_is_refused(tmp_path):
    (path,) = files(
        tmp_path,
        {"text.txt": "all on one line " * 500},
    )
    with pytest.raises(UserError, match="valid split is empty: cuts are at the ends of lines"):
        corpus_of(path, tmp_path, level="word")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", ["text", "text.txt.gz"])
def test_a_text_is_one_document_with_or_without_a_mark_of_its_encoding(tmp_path, name, encoding):
    text = "".join(f"line {n} é\n" for n in range(60))
    content = text.encode(encoding)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    corpus = corpus_of(
        files(tmp_path, {name: content}),
        tmp_path,
    )
    assert text_of(corpus) == text
    assert sum(len(corpus.documents[split]) for split in SPLITS) == 3  # cuts go through it


def test_a_link_that_leads_nowhere_is_refused_and_a_file_is_read_once(tmp_path):
    folder = tmp_path / "texts"
    files(
        tmp_path,
        {"elsewhere/a.txt": "to be or not\n" * 90, "texts/b.png": b"picture"},
    )
    (folder / "folder").symlink_to(tmp_path / "elsewhere")
    (folder / "c.txt").symlink_to("folder/a.txt")
    assert text_of(corpus_of(str(folder), tmp_path)) == "to be or not\n" * 90
    (folder / "d.txt").symlink_to("nowhere")
    with pytest.raises(OptionError, match=r"cannot be read \(No such .*/d\.txt"):
        corpus_of(str(folder), tmp_path)


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    """A pattern passes over it without a word."""
    files(
        tmp_path,
        {"texts/a.txt": "a" * 50, "texts/sub/b.txt": "b" * 50},
    )
    scan = os.scandir

    def locked(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(OptionError, match=r"cannot be read \(Permission denied: .*texts/sub"):
        corpus_of(str(tmp_path / "texts"), tmp_path)
