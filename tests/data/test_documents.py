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


@pytest.mark.parametrize("level", ["byte", "word"])
def test_files_are_documents_in_the_order_of_their_paths(tmp_path, level):
    listed = files(
        tmp_path / "texts",
        {**TEXTS, ".hidden": "nothing", "empty.txt": ""},
    )
    texts = [text.strip() + "\n" if level == "word" else text for text in TEXTS.values()]
    for path in (str(tmp_path / "texts"), listed[3::-1]):
        corpus = corpus_of(
            path,
            tmp_path,
            level=level,
            min_count=1 if level == "word" else None,
        )
        documents = [document for split in SPLITS for document in documents_of(corpus, split)]
        assert documents[:2] == texts[:2]  # words of two documents are never joined
        assert "".join(documents[2:-1]) == TEXTS["c.txt"]  # in all three splits
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


@pytest.mark.parametrize("level", ["byte", "word"])
@pytest.mark.parametrize("name", CASES)
def test_documents_begin_at_the_lines_that_the_corpus_names(tmp_path, name, level):
    document, first = CASES[name]
    conf = CONF / f"data/{name}.yaml"
    pattern = yaml.safe_load(conf.read_text())["document_start"] if conf.is_file() else "^= .* =$"
    (path,) = files(
        tmp_path,
        {
            "text.txt": "".join(
                document.replace(
                    "{i}",
                    str(i),
                )
                for i in range(40)
            )
        },
    )
    corpus = corpus_of(path, tmp_path, True, level=level, document_start=pattern)
    assert text_of(corpus) == text_of(corpus_of(path, tmp_path, level=level))
    start = first.strip() if level == "word" else first
    for split in SPLITS:
        marked = np.flatnonzero(np.asarray(corpus.splits[split]) < 0)
        assert np.array_equal(marked, corpus.documents[split])
        pieces = documents_of(corpus, split)[1:]
        assert all(piece.lstrip("\n").startswith(start) for piece in pieces)
        assert sum(piece.count(start) for piece in pieces) == len(pieces)
    # The text before the first heading is one too.
    assert len(corpus.documents["train"]) in (36, 37)


def test_the_sentences_of_lm1b_are_documents(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "lm1b", {})
    files(
        tmp_path,
        {f"lm1b/{split}.txt": "the cat sat\na dog\n" * 40 for split in SPLITS},
    )
    lengths = {"batch_size": 2, "segment_len": 7}
    folders = {"root": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
    config = Lm1bData("lm1b", "word", **folders, **lengths)
    module = StreamsDataModule(config, EvaluationConfig(**lengths), marked=True)
    n_sentences = len(module.corpus.sentences["valid"])
    assert np.count_nonzero(np.asarray(module.corpus.splits["valid"]) < 0) == n_sentences > 2
    mark = module.corpus.vocabulary.numbers["<S>"]
    for segment in (module.train_dataloader()[0], module.test_dataloader()[0]):
        tokens = segment.tokens.numpy()
        assert set(without_marks(tokens[tokens < 0])) == {mark}
        assert np.count_nonzero(tokens < 0) >= 4
