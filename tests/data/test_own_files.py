"""Files of the user: splits by their names, words that are rare, formats, encodings, and what is no text."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.documents import split_documents, start_pattern
from txl_lightning.data.sources import Part
from txl_lightning.errors import OptionError, UserError

SPLIT_TEXTS = {"train": "to be or not to be\n" * 90, "valid": "that is the question\n" * 9, "test": "to sleep\n" * 9}


def corpus_of(path: Any, cache: Path, **options: Any) -> Corpus:
    return load_corpus(FileData(name="file", path=path, cache_dir=str(cache / "cache"), **options))


def text_of(corpus: Corpus, split: str) -> str:
    return bytes(corpus.splits[split].tolist()).decode()


def files(folder: Path, contents: dict[str, str | bytes]) -> list[str]:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(folder / name) for name in contents]


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("training-00000-of-00001.txt", "dev-00000-of-00001.txt", "test-00000-of-00001.txt"),
        ("a/train/1.txt", "a/validation/1.txt", "a/test/1.txt"),
        ("my_Train_set.txt", "my_VAL.csv", "heldout/my_testset.md"),
    ],
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_files_that_are_splits_are_splits(tmp_path: Path, names: tuple[str, ...], is_folder: bool) -> None:
    if "heldout" in names[2]:  # a folder and a name that disagree say nothing: see below
        names = (*names[:2], "my_testset.md")
    listed = files(tmp_path / "texts", dict(zip(names, SPLIT_TEXTS.values(), strict=True)))
    corpus = corpus_of(str(tmp_path / "texts") if is_folder else listed[::-1], tmp_path)
    assert {split: text_of(corpus, split) for split in SPLITS} == SPLIT_TEXTS


def test_a_missing_split_is_cut_from_train_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = files(tmp_path, {"train.txt": "train " * 100, "test.txt": "held out"})
    corpus = corpus_of(listed, tmp_path)
    assert text_of(corpus, "test") == "held out"
    assert (text_of(corpus, "train") + text_of(corpus, "valid")) == "train " * 100
    said = "valid cut from the end of train, bytes of each split: train 568, valid 32, test 8"
    assert said in capsys.readouterr().err
    mapped = corpus_of({"train": listed[1:], "test": listed[0]}, tmp_path)
    assert (text_of(mapped, "train") + text_of(mapped, "valid"), text_of(mapped, "test")) == (
        "held out",
        "train " * 100,
    )


def test_other_files_are_joined_and_said_with_their_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of code has train.py and test_model.py; they are no splits of it."""
    files(tmp_path / "code", {"train.py": "a" * 10, "test_model.py": "b" * 10, "model.py": "c" * 80})
    corpus = corpus_of(str(tmp_path / "code"), tmp_path)
    assert (
        text_of(corpus, "train") + text_of(corpus, "valid") + text_of(corpus, "test") == "c" * 80 + "b" * 10 + "a" * 10
    )
    assert "joined and cut, bytes of each split: train 90, valid 5, test 5" in capsys.readouterr().err
    files(tmp_path / "data", {"train.txt": "a" * 90, "test.txt": "b" * 10, "README": "c", ".git/x": "d"})
    corpus = corpus_of(str(tmp_path / "data"), tmp_path)
    assert text_of(corpus, "test") == "b" * 10
    assert "README say no split; left out" in capsys.readouterr().err
    listed = files(tmp_path, {"train.txt": "a" * 90, "test.txt": "b" * 10, "more.txt": "c"})
    with pytest.raises(OptionError, match=r"has files that are splits and more.txt, which is none; name the splits: '"):
        corpus_of(listed, tmp_path)
    with pytest.raises(OptionError, match=r"name the splits: 'data.path={train:PATH,"):
        corpus_of(listed[1:2] + files(tmp_path, {"valid.txt": "x"}), tmp_path)
    with pytest.raises(OptionError, match=r"must have text: it is empty in test.txt|must not be empty"):
        corpus_of({"train": listed[0], "test": files(tmp_path, {"none/test.txt": ""})[0]}, tmp_path)


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_ids_in_a_folder_with_the_names_of_splits(tmp_path: Path, suffix: str) -> None:
    for number, split in enumerate(("train", "val", "test")):
        ids = np.arange(10 + number, dtype=np.uint16)
        path = tmp_path / f"ids/{split}{suffix}"
        path.parent.mkdir(exist_ok=True)
        ids.tofile(path) if suffix == ".bin" else np.save(path, ids)
    dtype = "uint16" if suffix == ".bin" else None
    corpus = corpus_of(str(tmp_path / "ids"), tmp_path, level="ids", dtype=dtype)
    assert [len(corpus.splits[split]) for split in SPLITS] == [10, 11, 12]


def test_rare_words_train_the_unknown_one_and_its_share_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = "to be or not to be or not once\n" * 1 + "to be\n" * 9
    listed = files(tmp_path, {"train.txt": train, "valid.txt": "to be new\n" * 5, "test.txt": "new be\n" * 5})
    corpus = corpus_of(listed, tmp_path, level="word")
    assert corpus.vocabulary.decode(corpus.splits["train"][:10]) == "to be or not to be or not <unk>\n"
    assert corpus.unknown == {"train": 1 / 37, "valid": 1 / 4, "test": 1 / 3}
    assert corpus.facts()["unknown"] == corpus.unknown
    assert corpus.unknown_share("test") == " with 33.3% <unk>"
    assert "never trained" not in capsys.readouterr().err
    untrained = corpus_of(listed, tmp_path, level="word", min_count=1)
    assert untrained.unknown == {"train": 0, "valid": 1 / 4, "test": 1 / 3}
    said = "<unk> is never trained (0.0% of train, 25.0% of valid, 33.3% of test); data.min_count=2 makes rare"
    assert said in capsys.readouterr().err
    characters = corpus_of(listed, tmp_path, level="char", min_count=2)
    assert characters.unknown["train"] == train.count("c") / len(train)
    with pytest.raises(OptionError, match=r"data\.min_count=2: is for data\.level=word or char, not byte"):
        corpus_of(listed, tmp_path, min_count=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("床前明月光疑是地上霜舉頭望明月\n" * 100, "a word has 46 bytes on average; use data.level=bpe, char or byte"),
        ("".join(f"字{n}文\n" for n in range(900)), "812 of 812 training words are <unk>, .* use data.level=bpe"),
        ("all on one line " * 500, "the valid split is empty: cuts are at the ends of lines, .*: use data.level=bpe"),
    ],
)
def test_a_text_that_white_space_does_not_divide_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (path,) = files(tmp_path, {"text.txt": text})
    with pytest.raises(UserError, match=words):
        corpus_of(path, tmp_path, level="word")
    assert len(corpus_of(path, tmp_path, level="char").splits["valid"]) > 0


def test_an_empty_split_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the valid split is empty: it is too short"):
        corpus_of(files(tmp_path, {"text.txt": "short"})[0], tmp_path)


def parquet(texts: list[str]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), buffer)
    return buffer.getvalue()


def zstd(content: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(content, codec="zstd", asbytes=True)


RECORDS = [f"record {n} é" for n in range(60)]
JOINED = "".join(f"{record}\n" for record in RECORDS)
LINES = "".join(json.dumps({"text": record}) + "\n" for record in RECORDS).encode()
FORMATS: dict[str, Callable[[], bytes]] = {
    "text.gz": lambda: gzip.compress(JOINED.encode()),
    "text.txt": lambda: gzip.compress(JOINED.encode()),  # by its contents
    "text.bz2": lambda: bz2.compress(JOINED.encode()),
    "text.xz": lambda: lzma.compress(JOINED.encode()),
    "text.zst": lambda: zstd(JOINED.encode()),
    "text.utf16.txt": lambda: JOINED.encode("utf-16"),
    "text.bom.txt": lambda: JOINED.encode("utf-8-sig"),
    "text.bom.txt.gz": lambda: gzip.compress(JOINED.encode("utf-8-sig")),
    "text.jsonl": lambda: LINES,
    "text.jsonl.zst": lambda: zstd(LINES),
    "text.json": lambda: json.dumps([{"text": record} for record in RECORDS]).encode(),
    "text.csv": lambda: ("id,text\n" + "".join(f'1,"{record}"\n' for record in RECORDS)).encode(),
    "text.parquet": lambda: parquet(RECORDS),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", ["byte", "word"])
def test_files_are_read_as_their_contents_say(tmp_path: Path, name: str, level: str) -> None:
    (path,) = files(tmp_path, {name: FORMATS[name]()})
    corpus = corpus_of(path, tmp_path, level=level)
    decoded = "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS)
    assert decoded == JOINED if level == "byte" else decoded.count("record") == 60
    is_of_records = any(kind in name for kind in ("json", "csv", "parquet"))
    n_documents = sum(len(corpus.documents[split]) for split in SPLITS)
    assert 60 <= n_documents <= 62 if is_of_records else n_documents == 3  # a cut goes through a document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"%PDF-1.7 " + b"x" * 99, "must be a text, not binary"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 99, "must be a text, not binary"),
        (b"\x80\x04\x95" + bytes(99), "must be a text, not binary"),
        (b"PK\x03\x04" + b"x" * 99, "must be a text, not an archive; unpack it"),
        (gzip.compress(bytes(257) + b"ustar" + bytes(99), mtime=0), "must be a text, not an archive; unpack it"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (path,) = files(tmp_path, {"text.txt": content})
    with pytest.raises(OptionError, match=words):
        corpus_of(path, tmp_path, level="char")


@pytest.mark.parametrize("content", [b'{"body": "a"}\n' * 9, b"no json\n" * 9, b'{"text": null}\n' * 9])
def test_records_without_text_are_refused(tmp_path: Path, content: bytes) -> None:
    (path,) = files(tmp_path, {"text.jsonl": content})
    with pytest.raises(OptionError, match="must have a text in the column text of every record"):
        corpus_of(path, tmp_path)


@pytest.mark.parametrize("record", [{"content": "a line", "id": 1}, {"text": None}, {"text": 7}])
def test_the_record_without_text_is_shown(tmp_path: Path, record: dict[str, object]) -> None:
    (path,) = files(tmp_path, {"text.jsonl": f"{json.dumps({'text': 'a'})}\n{json.dumps(record)}\n".encode()})
    with pytest.raises(OptionError, match=re.escape(f"of every record (LookupError: one is {record})")):
        corpus_of(path, tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for name, content in {"a.gz": gzip.compress(b"text" * 999)[:-9], "a.xz": lzma.compress(b"text" * 999)[:-9]}.items():
        with pytest.raises(UserError, match=f"{name}: cannot be read"):
            corpus_of(files(tmp_path, {name: content})[0], tmp_path)


def test_of_a_folder_only_texts_are_read_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {
        "a.txt": "a" * 50,
        "b.txt.gz": gzip.compress(b"b" * 50),
        "c.png": b"\x89PNG\r\n\x1a\nx",
        "d.dat": b"x\0y",
    }
    files(tmp_path / "texts", {**contents, "__pycache__/e.pyc": b"x", ".git/f": "f"})
    corpus = corpus_of(str(tmp_path / "texts"), tmp_path)
    assert "".join(text_of(corpus, split) for split in SPLITS) == "a" * 50 + "b" * 50
    assert "c.png, d.dat: no text; left out" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives its place to a user who may not read")
@pytest.mark.parametrize("locked", ["texts", "texts/sub", "texts/sub/b.txt"])
def test_what_may_not_be_read_is_named(tmp_path: Path, locked: str) -> None:
    files(tmp_path / "texts", {"a.txt": "a" * 50, "sub/b.txt": "b" * 50})
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / locked).chmod(0)
    code = f"""
import os
import re
from txl_lightning.config.schemas import FileData
from txl_lightning.data.own_files import file
os.setgid(65534), os.setuid(65534)  # the interpreter's files need not be readable to all
file(FileData(name="file", path={str(tmp_path / "texts")!r}, cache_dir="/nowhere"))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert "data.path=" in last
    assert f"{locked.rpartition('/')[2]} cannot be read (Permission denied)" in last or locked == "texts", last
    assert "cannot be read (Permission denied)" in last


def test_a_document_may_end_its_lines_as_windows_does(tmp_path: Path) -> None:
    text = "= One =\r\nfirst\r\n\r\n= Two =\r\nsecond = \r\n"
    (path,) = files(tmp_path, {"text.txt": text})
    found = [b"".join(chunks) for chunks in split_documents([Part(Path(path))], start_pattern("^= .* =$"))]
    assert found == [text[:18].encode(), text[18:].encode()]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ids.bin", b"1 2 3 4 5 6 7 8\n" * 9, "not digits of a text: save it with numpy.save"),
        ("ids.json", json.dumps(list(range(99))).encode(), "not digits of a text"),
        ("ids.txt", b"\x01\x00\x02\x00", "not binary: save it"),
        ("ids.bin", b"PK\x03\x04" + bytes(60), "not an archive: save it"),
        ("ids.raw", gzip.compress(bytes(64), mtime=0), "not compressed: save it"),
        ("ids.pt", b"\x80\x02" + bytes(60), "not binary: save it"),
    ],
)
def test_ids_in_other_formats_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        corpus_of(files(tmp_path, {name: content})[0], tmp_path, level="ids", dtype="uint16")


def test_archives_of_numpy_are_refused_and_arrays_need_no_suffix(tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", ids=np.arange(100))
    with pytest.raises(OptionError, match="not an archive: save it"):
        corpus_of(str(tmp_path / "ids.npz"), tmp_path, level="ids", dtype="uint16")
    with (tmp_path / "ids.bin").open("wb") as file:
        np.save(file, np.arange(100))
    corpus = corpus_of(str(tmp_path / "ids.bin"), tmp_path, level="ids", dtype="uint16")
    assert sum(len(corpus.splits[split]) for split in SPLITS) == 100
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(OptionError, match="not an archive; unpack it"):
        corpus_of(files(tmp_path, {"a.docx": buffer.getvalue()})[0], tmp_path, level="char")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "ids.bin", "ids.bin")
    with pytest.raises(OptionError, match="not an archive; unpack it"):
        corpus_of(str(tmp_path / "a.tar"), tmp_path, level="char")
