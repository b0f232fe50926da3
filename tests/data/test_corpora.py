"""Corpora of files, and the cache of encoded tokens."""

import hashlib
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
from txl_lightning.data import corpus as corpus_module
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.errors import UserError


def stdlib(cache_dir: Path) -> Corpus:
    return load_corpus(DataConfig(name="python-stdlib", cache_dir=str(cache_dir)))


def corpus_of(path: Path, content: bytes | None, **options: object) -> Corpus:
    """Corpus of a file in a folder, where the cache is too."""
    if content is not None:
        path.write_bytes(content)
    return load_corpus(DataConfig(name="file", path=str(path), cache_dir=str(path.parent / "cache"), **options))


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


def test_the_default_corpus_is_megabytes_of_text(tmp_path: Path) -> None:
    sizes = np.array([len(tokens) for tokens in stdlib(tmp_path).splits.values()])
    assert sizes.sum() > 1_000_000
    assert sizes / sizes.sum() == pytest.approx([0.9, 0.05, 0.05], abs=0.05)


def test_a_binary_file_is_cut_by_fractions(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    corpus = corpus_of(tmp_path / "x.bin", content, fractions=[0.5, 0.25, 0.25])
    assert b"".join(corpus.splits[split].tobytes() for split in SPLITS) == content
    assert [len(corpus.splits[split]) for split in SPLITS] == [1280, 640, 640]


def test_a_text_is_never_cut_inside_a_character(tmp_path: Path) -> None:
    text = "äöü€𝄞" * 30
    for share in np.arange(0.02, 0.4, 0.03).tolist():
        corpus = corpus_of(tmp_path / "t.txt", text.encode(), level="char", fractions=[1 - 2 * share, share, share])
        assert "".join(corpus.vocabulary.decode(corpus.splits[split]) for split in SPLITS) == text


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
    with pytest.raises(UserError, match=words):
        corpus_of(tmp_path / "corpus.txt", content, **options)
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


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_module, "write_json", full_disk)
    with pytest.raises(UserError, match=r"t\.txt: data\.cache_dir=.*No space left on device"):
        corpus_of(tmp_path / "t.txt", b"text " * 50)
    assert list((tmp_path / "cache").iterdir()) == []


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
