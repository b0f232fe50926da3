"""Corpora of files, and the cache of encoded tokens."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl_lightning.config.schemas import DataConfig, FileData, data_class
from txl_lightning.data import corpus as corpus_module
from txl_lightning.data import sources
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.errors import UserError, notice


def stdlib(cache_dir: Path) -> Corpus:
    return load_corpus(DataConfig(name="python-stdlib", cache_dir=str(cache_dir)))


def corpus_of(path: Path, content: bytes | None, **options: object) -> Corpus:
    """Corpus of a file in a folder, where the cache is too."""
    if content is not None:
        path.write_bytes(content)
    return load_corpus(FileData(name="file", path=str(path), cache_dir=str(path.parent / "cache"), **options))


def test_python_stdlib_is_its_source_files_in_an_order_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    names = [f"{folder}module_{i}.py" for i in range(80) for folder in ("", "package/", "package/inner/")]
    for name in [*names, "test/a.py", "package/tests/b.py", "site-packages/c/d.py", "__pycache__/e.py", "f.txt"]:
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(f"# {name}\n" * 10)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    corpus = stdlib(tmp_path)
    texts = [f"# {name}\n" * 10 for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())]
    assert "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS) == "".join(texts)
    shares = [len(corpus.splits[split]) / len("".join(texts)) for split in SPLITS]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=1.5 / len(names))  # no file is cut
    starts = [0, *accumulate(map(len, texts))]
    n_train, n_test = len(corpus.documents["train"]), len(corpus.documents["test"])
    assert corpus.documents["train"].tolist() == starts[:n_train]
    assert corpus.documents["test"].tolist() == [start - starts[-1 - n_test] for start in starts[-1 - n_test : -1]]
    assert (corpus.name, len(corpus.vocabulary)) == (f"python-stdlib {platform.python_version()}", 256)
    assert stdlib(tmp_path / "other").checksum == corpus.checksum
    (library / names[0]).write_text("changed\n")
    assert stdlib(tmp_path).checksum != corpus.checksum


SOURCES = ("__init__.py", *(f"core/m{i}.py" for i in range(30)))


def installed(folder: Path, sympy: str, networkx: str) -> None:
    """Write two packages of these versions, as pip does."""
    for package, version in (("sympy", sympy), ("networkx", networkx)):
        (folder / f"{package}-{version}.dist-info").mkdir(parents=True)
        (folder / f"{package}-{version}.dist-info/METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        for name in (*SOURCES, "core/tests/test_b.py", "conftest.py", "__pycache__/a.py"):
            (folder / package / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / package / name).write_text(f"raise ImportError  # {package}/{name}\n" * 20)


def test_the_default_corpus_is_the_same_text_everywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus = load_corpus(config := DataConfig(name="python-packages", cache_dir=str(tmp_path / "cache")))
    if corpus.name != "sympy 1.14.0 + networkx 3.6.1":  # which needs Python 3.11
        assert corpus.name == " + ".join(f"{name} {metadata.version(name)}" for name in ("sympy", "networkx"))
        assert corpus.name in capfd.readouterr().err
        return
    assert corpus.checksum == sources.PACKAGES_CHECKSUM
    assert sum(map(len, corpus.splits.values())) == 20_602_987
    assert corpus.vocabulary.decode(corpus.splits["test"][:40]) == '"""Power series evaluation and manipulat'
    assert (load_corpus(config).name, capfd.readouterr().err) == (corpus.name, "")


@pytest.mark.parametrize(
    ("versions", "name", "said"),
    [
        (("1.14.0", "3.4.2"), "sympy 1.14.0 + networkx 3.4.2", "this text is sympy 1.14.0 + networkx 3.4.2; losses of"),
        (("1.14.0", "3.6.1"), "sympy 1.14.0 + networkx 3.6.1, changed", "differ from the published ones"),
    ],
)
def test_other_packages_are_named_and_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    versions: tuple[str, str],
    name: str,
    said: str,
) -> None:
    installed(tmp_path / "site", *versions)
    for module in ("sympy", "networkx"):  # imported by torch
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    notice.cache_clear()
    corpus = load_corpus(config := DataConfig(name="python-packages", cache_dir=str(tmp_path / "cache")))
    files = [f"{package}/{file}" for package in ("sympy", "networkx") for file in SOURCES]
    files.sort(key=lambda file: hashlib.sha256(file.encode()).digest())
    text = "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS)
    assert text == "".join(f"raise ImportError  # {file}\n" * 20 for file in files)
    load_corpus(config)
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line
    assert corpus.name == name


def test_a_text_is_never_cut_inside_a_character(tmp_path: Path) -> None:
    text = "äöü€𝄞" * 30
    for share in np.arange(0.02, 0.4, 0.03).tolist():
        corpus = corpus_of(tmp_path / "t.txt", text.encode(), level="char", fractions=[1 - 2 * share, share, share])
        assert "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS) == text
        assert len(corpus.splits["valid"]) == pytest.approx(share * len(text), abs=2)


BPE = {"level": "bpe"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "empty.txt"}, "data.path=empty.txt: must not be empty"),
        ({"path": "folder"}, "data.path=folder: must not be empty"),
        ({"path": "nowhere"}, "data.path=nowhere: .*cannot be read"),
        ({"path": []}, "must be a file, a folder, a list"),
        ({"path": "latin.txt", "level": "char"}, "latin.txt: not UTF-8"),
        ({"level": "letters"}, "data.level=letters: must be byte or char or word or bpe"),
        ({"fractions": [0.5, 0.5]}, "data.fractions"),
        ({"fractions": [0.9, 0.1, 0.1]}, "data.fractions"),
        ({**BPE, "vocab_size": 100_000}, r"data.vocab_size=100000: must be in 256 … \d+: no other pair"),
        ({**BPE, "vocab_size": 255}, "data.vocab_size=255: must be an integer >= 256"),
        ({**BPE, "vocab_size": 300, "tokenizer": "x.json"}, "must not be given together"),
        ({**BPE, "tokenizer": "missing.json"}, "data.tokenizer=missing.json: cannot be read"),
        ({"level": "char", "vocab_size": 300}, "data.vocab_size=300: is for data.level=bpe"),
        ({"tokenizer": "x.json"}, "data.tokenizer=x.json: is for data.level=bpe"),
        ({"name": "enwik"}, "data=enwik: must be one of python-packages, python-stdlib, file"),
        ({"name": "python-3.11"}, "data=python-3.11: is in version 0.3.0 only: .* data_path, .* data=python-packages"),
        ({"name": "enwik8", "level": "char"}, "data.level=char: must be byte for data=enwik8"),
        ({"name": "enwik8", "newlines": "yes"}, "data.newlines=yes: must be dropped"),
        ({"name": "enwik8", "root": "nowhere"}, "data.root=nowhere: must be a folder"),
        ({"name": "enwik8"}, "TXL_DATA=missing: must be a folder"),
        ({"name": "lm1b", "level": "word", "sentence_marks": "no"}, "sentence_marks=no: must be start or both"),
        ({"name": "ptb"}, "data.level=byte: must be word or char for data=ptb"),
    ],
)
def test_bad_options_and_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_DATA", "missing")
    Path("folder").mkdir()
    for name, content in {"text.txt": b"text" * 50, "latin.txt": b"caf\xe9 " * 50, "empty.txt": b""}.items():
        Path(name).write_bytes(content)
    options = options if "name" in options else {"name": "file", "path": "text.txt", **options}
    with pytest.raises(UserError, match=words):
        load_corpus(data_class(options["name"])(cache_dir="cache", **options))
    assert not list(tmp_path.glob("cache/*"))


def test_tokens_are_mapped_and_prepared_again_for_a_changed_file_or_level_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"first text " * 20, b"other text " * 20):
        tokens = corpus_of(tmp_path / "t.txt", content).splits["train"]
        assert isinstance(tokens, np.memmap)
        assert tokens.tobytes() == content[:198]
    corpus_of(tmp_path / "t.txt", None, level="char")
    assert len(list(tmp_path.glob("cache/*"))) == 3
    monkeypatch.setattr(corpus_module, "_prepare", lambda *given: pytest.fail("prepared again"))
    assert corpus_of(tmp_path / "t.txt", b"first text " * 20).splits["train"].tobytes() == b"first text " * 18


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = corpus_of(tmp_path / "t.txt", b"first text " * 20).checksum
    monkeypatch.setattr(corpus_module, "LARGE_FILE_BYTES", 200)
    assert corpus_of(tmp_path / "t.txt", None).checksum == small
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "file_checksum", lambda path: pytest.fail("hashed again"))
        assert corpus_of(tmp_path / "t.txt", None).checksum == small
    assert corpus_of(tmp_path / "t.txt", b"second text" * 20).checksum != small
    assert len(list(tmp_path.glob("cache/fingerprints/*"))) == 2
    shutil.rmtree(tmp_path / "cache/fingerprints")
    (tmp_path / "cache/fingerprints").touch()  # nothing can be kept
    assert corpus_of(tmp_path / "t.txt", b"a text" * 50).splits["train"].tobytes() == b"a text" * 45


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "write_json", full_disk)
    with pytest.raises(UserError, match=r"t\.txt: data\.cache_dir=.*No space left on device"):
        corpus_of(tmp_path / "t.txt", b"text " * 50)
    assert list((tmp_path / "cache").iterdir()) == []


def test_processes_that_prepare_at_the_same_time_do_not_harm_each_other(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(os.urandom(2_000_000))
    program = (
        "import sys; from txl_lightning.config.schemas import FileData\n"
        "from txl_lightning.data.corpus import load_corpus\n"
        "c = load_corpus(FileData(name='file', path=sys.argv[1], cache_dir=sys.argv[2]))\n"
        "print(sum(len(s) for s in c.splits.values()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t.txt"), str(tmp_path / "c")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["2000000"] * 3
    assert len(list((tmp_path / "c").iterdir())) == 1
