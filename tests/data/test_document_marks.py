"""The first token of every document is marked, at every level, and the text stays what it is."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from txl_lightning.config.schemas import CONF, DataConfig, EvaluationConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.documents import without_marks
from txl_lightning.errors import OptionError

WIKITEXT = "".join(
    f" \n = Title {i} é = \n \n The <unk> text of {i} . \n = 1 and k = \n 1 . \n \n = = Section = = \n \n More . \n"
    for i in range(40)
)
ENWIK8 = "".join(f"  <page>\n    <title>{i}</title>\n  </page>\n" for i in range(40))
WIKIPEDIA = "".join(f'<doc id="{i}">\nText é\n</doc>\n' for i in range(40))
CASES = {"wikitext-103": (WIKITEXT, " = Title"), "enwik8": (ENWIK8, "  <page>"), "wikipedia-2015": (WIKIPEDIA, "<doc")}


def corpus_of(text: str, folder: Path, level: str, pattern: str | None, marked: bool = True) -> Corpus:
    (folder / "text.txt").write_text(text)
    config = DataConfig("file", level, path=str(folder / "text.txt"), cache_dir=str(folder / "cache"))
    config.document_start = pattern
    return load_corpus(config, marked=marked)


@pytest.mark.parametrize("level", ["byte", "char", "word"])
@pytest.mark.parametrize("name", CASES)
def test_documents_begin_at_the_lines_that_the_corpus_names(tmp_path: Path, name: str, level: str) -> None:
    text, first = CASES[name]
    pattern = yaml.safe_load((CONF / f"data/{name}.yaml").read_text())["document_start"]
    corpus, plain = (corpus_of(text, tmp_path, level, pattern, marked) for marked in (True, False))
    for split in SPLITS:
        tokens, starts = corpus.splits[split], corpus.documents[split]
        assert np.array_equal(without_marks(tokens), plain.splits[split])
        assert np.array_equal(np.flatnonzero(tokens < 0), starts)
        pieces = [corpus.vocabulary.decode(without_marks(tokens[a:b])) for a, b in pairwise([*starts, len(tokens)])]
        start = first.strip() if level == "word" else first
        assert all(piece.lstrip("\n").startswith(start) for piece in pieces[1:])
        assert sum(piece.count(start) for piece in pieces[1:]) == len(pieces) - 1
    assert len(corpus.documents["train"]) in (36, 37)  # the text before the first heading is one too


def test_the_sentences_of_lm1b_are_documents(tmp_path: Path) -> None:
    (tmp_path / "lm1b").mkdir()
    (tmp_path / "lm1b/heldout-1.tokens").write_text("the cat sat\na dog\n" * 40)
    config = DataConfig("lm1b", "word", root=str(tmp_path), prefix=True, cache_dir=str(tmp_path / "cache"))
    corpus = load_corpus(config, marked=True)
    assert (corpus.splits["valid"] < 0).sum() == len(corpus.sentences["valid"]) > 2
    config.batch_size, config.segment_len = 2, 7
    module = StreamsDataModule(config, EvaluationConfig(batch_size=2, segment_len=7), marked=True)
    for segment in (module.train_dataloader()[0], module.test_dataloader()[0]):
        marked = segment.tokens < 0
        assert (without_marks(segment.tokens.numpy())[marked] == corpus.vocabulary.numbers["<S>"]).all()
        assert marked.sum() >= 4


def test_marked_and_plain_tokens_of_a_text_have_places_of_their_own_in_the_cache(tmp_path: Path) -> None:
    splits = [corpus_of(ENWIK8, tmp_path, "byte", p, m).splits["train"] for p, m in ((None, False), ("a", True))]
    again = corpus_of(ENWIK8, tmp_path, "byte", None, marked=False).splits["train"]
    assert np.array_equal(splits[0], again)
    assert splits[1][0] < 0 <= splits[0][0]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"data.document_start=\(: must be a regular expression"),
        ("nowhere", "data.document_start=nowhere: must"),
        (None, "data.document_start=None: must match"),
    ],
)
def test_a_text_without_documents_is_refused(tmp_path: Path, pattern: str | None, words: str) -> None:
    (tmp_path / "text.txt").write_text(ENWIK8)
    config = DataConfig("file", path=str(tmp_path / "text.txt"), cache_dir=str(tmp_path / "c"), document_start=pattern)
    config.batch_size, config.segment_len = 2, 8
    with pytest.raises(OptionError, match=words):
        StreamsDataModule(config, EvaluationConfig(batch_size=2, segment_len=8), marked=True)
