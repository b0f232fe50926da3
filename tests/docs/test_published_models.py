"""The page of the published models: its script writes the vocabulary, its numbers are the paper's and the scripts'."""

import pickle
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from experiments import paper
from tests.docs.pages import ROOT, blocks
from txl_lightning.config.schemas import CONF
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


@pytest.mark.parametrize(
    ("name", "row", "results", "model"),
    [
        ("enwik8", "enwik8", paper.TABLE_2, "Transformer-XL 24 layers"),
        ("text8", "text8", paper.TABLE_3, "Transformer-XL 24 layers"),
        ("wt103", "WikiText-103", paper.TABLE_1, "Transformer-XL large"),
        ("lm1b", "One Billion Word", paper.TABLE_4, "Transformer-XL large"),
    ],
)
def test_the_numbers_are_those_of_the_paper_and_of_the_experiments(name, row, results, model) -> None:
    (line,) = re.findall(rf"^\| {row}, \S+ \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    number, *lengths = [cell.strip().replace(",", "").replace("none", "-1") for cell in line.split("|")]
    experiment = OmegaConf.load(CONF / f"experiment/published/{name}_large.yaml")
    assert float(number.split()[0]) == results.row(model).result
    assert [int(length) for length in lengths[:3]] == [experiment[n] for n in ("segment_len", "mem_len", "clamp_len")]
    assert f"Should give: test {number}." in (CONF / f"experiment/published/{name}_large.yaml").read_text()
