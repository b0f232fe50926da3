"""The script on the page of the published models writes the vocabulary of the paper's pickled corpus."""

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks
from txl_lightning.evaluation.convert import read_vocabulary

PAGE = ROOT / "docs/models.md"


def object_of(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> Any:
    """Return an object of a new class, whose module exists until the patch is undone."""
    kind = type(name, (), {"__module__": module})
    stub = ModuleType(module)
    setattr(stub, name, kind)
    monkeypatch.setitem(sys.modules, module, stub)
    return kind()


def test_the_script_writes_the_symbols_of_a_pickled_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes of the paper's code are not importable here."""
    corpus = object_of(monkeypatch, "data_utils", "Corpus")
    corpus.vocab = object_of(monkeypatch, "vocabulary", "Vocab")
    corpus.vocab.idx2sym = ["<eos>", "the", "caf\xc3\xa9"]  # bytes of Python 2
    (tmp_path / "cache.pkl").write_bytes(pickle.dumps(corpus, protocol=2))
    monkeypatch.undo()

    monkeypatch.chdir(tmp_path)
    script = blocks(PAGE, "python")[0]
    exec(compile(script, PAGE.name, "exec"), {"__name__": "script"})
    assert read_vocabulary(tmp_path / "vocab", "word").symbols == ("<eos>", "the", "café")
