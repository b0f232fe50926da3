"""Corpora, vocabularies and the cache of encoded tokens."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import corpus as cache
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.vocabulary import UNKNOWN, Vocabulary
from txl_lightning.errors import UserError


def file_config(path: Path, cache_dir: Path, **options: object) -> DataConfig:
    return DataConfig(name="file", path=str(path), cache_dir=str(cache_dir), **options)


def test_python_stdlib_is_its_source_files_in_an_order_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    names = [f"{folder}module_{i}.py" for i in range(80) for folder in ("", "package/", "package/inner/")]
    for name in [*names, "test/a.py", "package/tests/b.py", "site-packages/c/d.py", "__pycache__/e.py", "f.txt"]:
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(f"# {name}\n" * 10)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    first, second = (load_corpus(DataConfig(name="python-stdlib", cache_dir=str(tmp_path / d))) for d in "ab")
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    texts = [f"# {name}\n" * 10 for name in ordered]
    assert "".join(first.vocabulary.decode(first.splits[split]) for split in SPLITS) == "".join(texts)
    shares = [len(first.splits[split]) / len("".join(texts)) for split in SPLITS]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=1.5 / len(names))  # no file is cut
    starts = [0, *accumulate(map(len, texts))]
    n_train, n_test = len(first.documents["train"]), len(first.documents["test"])
    assert first.documents["train"].tolist() == starts[:n_train]
    assert first.documents["test"].tolist() == [start - starts[-1 - n_test] for start in starts[-1 - n_test : -1]]
    assert first.name == f"python-stdlib {platform.python_version()}"
    assert len(first.vocabulary) == 256
    assert first.checksum == second.checksum
    (library / names[0]).write_text("changed\n")
    changed = load_corpus(DataConfig(name="python-stdlib", cache_dir=str(tmp_path / "a")))
    assert changed.checksum != first.checksum


def test_the_default_corpus_is_megabytes_of_text(tmp_path: Path) -> None:
    corpus = load_corpus(DataConfig(name="python-stdlib", cache_dir=str(tmp_path)))
    sizes = [len(corpus.splits[split]) for split in SPLITS]
    assert sum(sizes) > 1_000_000
    assert [size / sum(sizes) for size in sizes] == pytest.approx([0.9, 0.05, 0.05], abs=0.05)


def test_a_binary_file_is_cut_by_fractions(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "x.bin").write_bytes(content)
    corpus = load_corpus(file_config(tmp_path / "x.bin", tmp_path / "cache", fractions=[0.5, 0.25, 0.25]))
    assert b"".join(corpus.splits[split].tobytes() for split in SPLITS) == content
    assert [len(corpus.splits[split]) for split in SPLITS] == [1280, 640, 640]


def test_a_text_is_never_cut_inside_a_character(tmp_path: Path) -> None:
    text = "äöü€𝄞" * 30
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    for percent in range(2, 40, 3):
        fractions = [1 - 2 * percent / 100, percent / 100, percent / 100]
        corpus = load_corpus(file_config(tmp_path / "t.txt", tmp_path / "c", level="char", fractions=fractions))
        assert "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS) == text


def test_the_vocabulary_is_of_the_training_split_only() -> None:
    vocabulary = Vocabulary.of_characters("abba")
    assert vocabulary.symbols == (UNKNOWN, "a", "b")
    assert vocabulary.encode("aXb€".encode()).tolist() == [1, 0, 2, 0]
    assert Vocabulary.from_state_dict(json.loads(json.dumps(vocabulary.state_dict()))) == vocabulary


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"", {}, "must not be empty"),
        (None, {}, "cannot be read"),
        (b"caf\xe9 " * 50, {"level": "char"}, "not UTF-8"),
        (b"text" * 50, {"level": "letters"}, "data.level=letters"),
        (b"text" * 50, {"fractions": [0.5, 0.5]}, "data.fractions"),
        (b"text" * 50, {"fractions": [0.9, 0.1, 0.1]}, "data.fractions"),
        (b"text" * 50, {"fractions": [1.0, 0.0, 0.0]}, "data.fractions"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes | None, options: dict[str, object], words: str) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        load_corpus(file_config(path, tmp_path / "cache", **options))
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_an_unknown_corpus_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data=enwik: must be one of python-stdlib, file"):
        load_corpus(DataConfig(name="enwik", cache_dir=str(tmp_path)))


def test_prepared_tokens_are_mapped_and_not_prepared_again(tmp_path: Path) -> None:
    calls = []

    def prepare(folder: Path) -> dict[str, object]:
        calls.append(1)
        with cache.array_writer(folder, "a", np.dtype(np.int32)) as writer:
            for chunk in (np.arange(3), np.empty(0), np.arange(3, 5)):
                writer.append(chunk)
        with cache.array_writer(folder, "empty", np.dtype(np.uint8)):
            pass
        return {"note": "x"}

    for _ in range(2):
        arrays, description = cache.cached(tmp_path, "key", prepare)
        assert isinstance(arrays["a"], np.memmap)
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert arrays["empty"].tolist() == []
        assert description["note"] == "x"
    assert calls == [1]


def test_a_changed_file_or_level_is_prepared_again(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    for content in (b"first text " * 20, b"other text " * 20):
        path.write_bytes(content)
        assert load_corpus(file_config(path, tmp_path / "c")).splits["train"].tobytes() == content[:198]
    load_corpus(file_config(path, tmp_path / "c", level="char"))
    assert len(list((tmp_path / "c").iterdir())) == 3


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.ArrayWriter, "append", full_disk)
    (tmp_path / "t.txt").write_bytes(b"text " * 50)
    with pytest.raises(UserError, match=r"t\.txt: data\.cache_dir=.*No space left on device"):
        load_corpus(file_config(tmp_path / "t.txt", tmp_path / "c"))
    assert list((tmp_path / "c").iterdir()) == []


def test_processes_that_prepare_at_the_same_time_do_not_harm_each_other(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(os.urandom(2_000_000))
    program = (
        "import sys; from txl_lightning.config.schemas import DataConfig\n"
        "from txl_lightning.data.corpus import load_corpus\n"
        "c = load_corpus(DataConfig(name='file', path=sys.argv[1], cache_dir=sys.argv[2]))\n"
        "print(sum(len(s) for s in c.splits.values()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t.txt"), str(tmp_path / "c")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["2000000"] * 3
    assert len(list((tmp_path / "c").iterdir())) == 1
