"""Corpora of installed packages and of files, and the cache of encoded tokens."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.data.helpers import corpus_of, files, text_of
from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import cache, installed
from txl_lightning.data import corpus as corpus_module
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.errors import UserError, notice

SOURCES = [
    "__init__.py",
    *(f"core/m{i}.py" for i in range(30)),
]
OTHERS = ["tests/a.py", "core/tests/b.py", "__pycache__/e.py", "conftest.py", "f.txt"]


def packages_of(folder: Path) -> Corpus:
    return load_corpus(DataConfig(name="python-packages", cache_dir=str(folder / "cache")))


def test_the_default_corpus_is_the_same_text_everywhere(tmp_path, capfd):
    corpus = packages_of(tmp_path)
    if corpus.checksum != installed.PACKAGES_CHECKSUM:  # the versions need Python 3.11
        assert "is not the published text" in capfd.readouterr().err
        return
    assert corpus.name == "sympy 1.14.0 + networkx 3.6.1"
    assert sum(map(len, corpus.splits.values())) == 20_602_987
    start = corpus.vocabulary.decode(corpus.splits["test"][:40])
    assert start == '"""Power series evaluation and manipulat'


def test_other_packages_are_named_and_their_files_are_in_the_order_of_a_hash(
    tmp_path, monkeypatch, capfd
):
    texts = {}
    contents = {f"sympy/{name}": "left out" for name in OTHERS}
    for package in ("sympy", "networkx"):
        for file in SOURCES:
            name = f"{package}/{file}"
            texts[name] = f"raise ImportError  # {name}\n" * 20
        # As pip does.
        information = f"Name: {package}\nVersion: 1.14.0\n"
        contents[f"{package}-1.14.0.dist-info/METADATA"] = information
    files(tmp_path / "site", texts | contents)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    notice.cache_clear()
    corpus = packages_of(tmp_path)
    assert "1.14.0 is not the published text; losses of others cannot" in capfd.readouterr().err
    assert corpus.name == "sympy 1.14.0 + networkx 1.14.0, changed"
    in_order = sorted(
        texts,
        key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
    )
    assert text_of(corpus) == "".join(texts[name] for name in in_order)
    starts = [
        0,
        *accumulate(len(texts[name]) for name in in_order),
    ]
    found = corpus.documents["train"].tolist()
    assert found == starts[: len(found)]


def test_tokens_are_prepared_again_for_a_changed_file_or_level(tmp_path, monkeypatch):
    for content in (b"first text " * 20, b"other text " * 20):
        (path,) = files(tmp_path, {"t.txt": content})
        tokens = corpus_of(path, tmp_path).splits["train"]
        assert isinstance(tokens, np.memmap)
        assert tokens.tobytes() == content[:198]
    corpus_of(path, tmp_path, level="char")
    assert len(list(tmp_path.glob("cache/*"))) == 3
    prepared = MagicMock()
    monkeypatch.setattr(corpus_module, "_write_split", prepared)
    files(tmp_path, {"t.txt": b"first text " * 20})
    assert corpus_of(path, tmp_path).splits["train"].tobytes() == b"first text " * 18
    assert not prepared.called


def test_a_failure_while_writing_leaves_nothing(tmp_path, monkeypatch):
    full_disk = MagicMock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(cache, "write_json", full_disk)
    with pytest.raises(UserError, match=r"t\.txt: data\.cache_dir=.*No space left on device"):
        corpus_of(
            files(tmp_path, {"t.txt": "text " * 50}),
            tmp_path,
        )
    assert list((tmp_path / "cache").iterdir()) == []


DAMAGES = {
    "train.uint8": lambda path: os.truncate(path, 0),
    "description.json": Path.unlink,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_cache_is_made_again_and_that_is_said(tmp_path, name, capsys):
    listed = files(tmp_path, {"t.txt": "text " * 50})
    corpus_of(listed, tmp_path)
    (folder,) = tmp_path.glob("cache/*")
    DAMAGES[name](folder / name)
    for lines in ([f"{folder} is damaged; it is prepared again"], []):
        assert text_of(corpus_of(listed, tmp_path)) == "text " * 50
        assert capsys.readouterr().err.splitlines() == lines
    assert list((tmp_path / "cache").iterdir()) == [folder]


# Checksums of corpora by version 0.5.0: of the files that the test writes, by path and level.
OF_0_5_0 = {
    ("joined", "char"): "4db4b162d74456bf38832dc4afc198bfe767c6c89d978b837531907b6a98fc14",
    ("splits", "char"): "ea181a8242df8c58ea7107e7186fac90edb48e4f2ac351813cce18cc6db19303",
    ("packed", "char"): "3becc77e6cb263e66e6c6d157024ecd4760f689e8846697a1716a987b03fe1e4",
    ("records", "char"): "bd36180f7dce228d6230b0ead3513d54cc45e0f44ed9dd5673f5c67674d7d10f",
    ("arrays", "ids"): "c5a37a3ecf643f83bec47fdde1e55d4d7366d0835063c97f8a803ed373130fe8",
}


@pytest.mark.parametrize(("path", "level"), OF_0_5_0)
def test_runs_of_0_5_0_find_their_corpus(tmp_path, path, level):
    """A resumed run compares the checksum."""
    text = "größer als a\n" * 30
    records = [json.dumps({"text": f"record {n} é"}) + "\n" for n in range(40)]
    contents = {
        "joined/a.txt": text,
        "joined/b.txt": "b é line\n" * 40,
        "splits/train.txt": "train é\n" * 90,
        "splits/test.txt": "test\n" * 9,
        "packed/a.txt.gz": gzip.compress(text.encode(), mtime=0),
        "records/a.jsonl": "".join(records),
        "arrays/0.npy": "",
    }
    files(tmp_path, contents)
    np.save(
        tmp_path / "arrays/0.npy",
        np.arange(400, dtype="<i8") % 37,
    )
    np.save(
        tmp_path / "arrays/1.npy",
        (np.arange(600) % 37).astype("<u2"),
    )
    corpus = corpus_of(
        str(tmp_path / path),
        tmp_path,
        level=level,
    )
    assert corpus.checksum == OF_0_5_0[path, level]


def test_processes_that_prepare_at_the_same_time_do_not_harm_each_other(tmp_path):
    (path,) = files(
        tmp_path,
        {"t.txt": os.urandom(1_000_000).hex()},
    )
    program = (
        "import sys; from pathlib import Path; from tests.data.helpers import corpus_of\n"
        "print(sum(map(len, corpus_of(sys.argv[1], Path(sys.argv[2])).splits.values())))"
    )
    command = [
        sys.executable,
        "-c",
        program,
        path,
        str(tmp_path),
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["2000000"] * 3
    assert len(list((tmp_path / "cache").iterdir())) == 1
