"""Documents: files of a folder, lines that match, and the mark of the token that begins one."""

import numpy as np
import pytest
import yaml

from tests.data.helpers import corpus_of, documents_of, files, text_of
from txl_lightning.config.schemas import CONF, EvaluationConfig, Lm1bData
from txl_lightning.data.corpus import SPLITS
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.published_corpora import PUBLISHED
from txl_lightning.data.vocabulary import without_marks

TEXTS = {
    "a.txt": "eins drei ",
    "b/second.txt": "zwei\nacht",
    "c.txt": "vier fünf sechs\n" * 20,
    "d.txt": "drei",
}


@pytest.mark.parametrize(
    ("level", "min_count"),
    [("byte", None), ("word", 1)],
)
def test_files_are_documents_in_the_order_of_their_paths(tmp_path, level, min_count):
    folder = tmp_path / "texts"
    listed = files(
        folder,
        {**TEXTS, ".hidden": "nothing", "empty.txt": ""},
    )
    texts = list(TEXTS.values())
    if level == "word":
        texts = [text.strip() + "\n" for text in texts]
    for path in (str(folder), listed[3::-1]):
        corpus = corpus_of(path, tmp_path, level=level, min_count=min_count)
        documents = [document for split in SPLITS for document in documents_of(corpus, split)]
        assert documents[:2] == texts[:2]  # words of two documents are never joined
        assert "".join(documents[2:-1]) == texts[2]  # in all three splits
        assert documents[-1] == texts[-1]
    assert corpus.name == "d.txt, c.txt, second.txt and 1 more files"


WIKITEXT = " \n = Title {i} é = \n \n The <unk> text of {i} . \n = 1 and k = \n 1 . \n \n = = Part = = \n \n More . \n"
ENWIK8 = "  <page>\n    <title>{i}</title>\n  </page>\n"
CASES = {
    "wikitext-103": (WIKITEXT, " = Title"),
    "enwik8": (ENWIK8, "  <page>"),
    "wikipedia-2015": ('<doc id="{i}">\nText é\n</doc>\n', "<doc"),
    "own": ("= One {i} =\nfirst\n\nsecond = \n", "= One"),
}


def document_start(name: str) -> str:
    """The pattern of a corpus in conf/; of the user's own text, a line between two signs."""
    conf = CONF / f"data/{name}.yaml"
    if not conf.is_file():
        return "^= .* =$"
    return yaml.safe_load(conf.read_text())["document_start"]


@pytest.mark.parametrize("level", ["byte", "word"])
@pytest.mark.parametrize("name", CASES)
def test_documents_begin_at_the_lines_that_the_corpus_names(tmp_path, name, level):
    document, start = CASES[name]
    text = "".join(document.replace("{i}", str(i)) for i in range(40))
    paths = files(tmp_path, {"text.txt": text})
    corpus = corpus_of(
        paths,
        tmp_path,
        True,
        level=level,
        document_start=document_start(name),
    )
    assert text_of(corpus) == text_of(corpus_of(paths, tmp_path, level=level))
    if level == "word":
        start = start.strip()
    for split in SPLITS:
        marked = np.flatnonzero(np.asarray(corpus.splits[split]) < 0)
        assert np.array_equal(marked, corpus.documents[split])
        for piece in documents_of(corpus, split)[1:]:
            assert piece.lstrip("\n").startswith(start)
            assert piece.count(start) == 1
    # The text before the first heading is one too.
    assert len(corpus.documents["train"]) in (36, 37)


def test_the_sentences_of_lm1b_are_documents(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "lm1b", {})
    text = "the cat sat\na dog\n" * 40
    files(
        tmp_path,
        {f"lm1b/{split}.txt": text for split in SPLITS},
    )
    lengths = {"batch_size": 2, "segment_len": 7}
    folders = {
        "root": str(tmp_path),
        "cache_dir": str(tmp_path / "cache"),
    }
    config = Lm1bData("lm1b", "word", **folders, **lengths)
    module = StreamsDataModule(
        config,
        EvaluationConfig(**lengths),
        marked=True,
    )
    corpus = module.corpus
    n_marked = np.count_nonzero(np.asarray(corpus.splits["valid"]) < 0)
    assert n_marked == len(corpus.sentences["valid"]) > 2
    for segment in (module.train_dataloader()[0], module.test_dataloader()[0]):
        tokens = segment.tokens.numpy()
        marked = tokens[tokens < 0]
        assert set(without_marks(marked)) == {corpus.vocabulary.numbers["<S>"]}
        assert len(marked) >= 4
