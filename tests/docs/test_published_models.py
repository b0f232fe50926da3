"""The page of the published models: its script writes the vocabulary of the paper's pickled corpus."""

import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, blocks
from txl_lightning.runs.convert import read_vocabulary

PAGE = ROOT / "docs/models.md"


def test_the_script_writes_the_symbols_of_a_pickled_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle objects of classes that are gone afterwards, as those of the paper's code are here."""
    objects = []
    for module, name in (("data_utils", "Corpus"), ("vocabulary", "Vocab")):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        kind = type(name, (), {"__module__": module})
        setattr(sys.modules[module], name, kind)
        objects.append(kind())
    corpus, vocabulary = objects
    corpus.vocab, vocabulary.idx2sym = vocabulary, ["<eos>", "the", "caf\xc3\xa9"]  # bytes of Python 2
    (tmp_path / "cache.pkl").write_bytes(pickle.dumps(corpus, protocol=2))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    script, *_ = blocks(PAGE, "python")
    exec(compile(script, PAGE.name, "exec"), {"__name__": "script"})
    assert read_vocabulary(tmp_path / "vocab", "word").symbols == ("<eos>", "the", "café")
