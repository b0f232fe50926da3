"""Documents: files of a folder, lines that match, and the mark of the token that begins one."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from txl_lightning.config.schemas import CONF, EvaluationConfig, FileData, Lm1bData
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.documents import without_marks
from txl_lightning.errors import OptionError

TEXTS = {"b/second.txt": "zwei\nacht", "a.txt": "eins drei ", "c.txt": "vier fünf sechs\n" * 20, "d.txt": "drei"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {**TEXTS, ".hidden": "nothing", "empty.txt": ""}.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(text)
    return tmp_path / "texts"


def corpus_of(path: object, cache: Path, **options: object) -> Corpus:
    least = 1 if options.get("level") in ("word", "char") else None
    return load_corpus(FileData(name="file", path=path, cache_dir=str(cache), min_count=least, **options))


def documents_of(corpus: Corpus, split: str) -> list[str]:
    tokens, starts = without_marks(corpus.splits[split]), corpus.documents[split].tolist()
    return [corpus.vocabulary.decode(tokens[a:b]) for a, b in pairwise([*starts, len(tokens)])]


@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_files_of_a_folder_are_documents_in_the_order_of_their_paths(folder: Path, tmp_path: Path, level: str) -> None:
    corpus = corpus_of(str(folder), tmp_path / "cache", level=level)
    documents = [document for split in SPLITS for document in documents_of(corpus, split)]
    end = "\n" if level == "word" else ""  # words of two documents are never joined
    *others, last = (text.strip() + end if end else text for text in TEXTS.values())
    assert documents[:2] == [others[1], others[0]]
    assert documents[-1] == last
    assert "".join(documents[2:-1]) == TEXTS["c.txt"]  # in all three splits
    assert corpus.name == "texts"


def test_a_list_of_files_is_sorted_and_one_file_is_one_document(folder: Path, tmp_path: Path) -> None:
    listed = corpus_of([str(folder / "c.txt"), str(folder / "a.txt")], tmp_path / "cache")
    assert documents_of(listed, "train")[0] == TEXTS["a.txt"]
    assert listed.name == "c.txt and 1 more"
    alone = corpus_of(str(folder / "c.txt"), tmp_path / "cache")
    assert all(np.array_equal(alone.documents[split], [0]) for split in SPLITS)


WIKITEXT = (
    " \n = Title {i} é = \n \n The <unk> text of {i} . \n = 1 and k = \n 1 . \n \n = = Section = = \n \n More . \n"
)
ENWIK8 = "  <page>\n    <title>{i}</title>\n  </page>\n"
CASES = {
    "wikitext-103": (WIKITEXT, " = Title"),
    "enwik8": (ENWIK8, "  <page>"),
    "wikipedia-2015": ('<doc id="{i}">\nText é\n</doc>\n', "<doc"),
}


def forty(document: str) -> str:
    return "".join(document.replace("{i}", str(i)) for i in range(40))


@pytest.mark.parametrize("level", ["byte", "char", "word"])
@pytest.mark.parametrize("name", CASES)
def test_documents_begin_at_the_lines_that_the_corpus_names(tmp_path: Path, name: str, level: str) -> None:
    document, first = CASES[name]
    (tmp_path / "text.txt").write_text(forty(document))
    pattern = yaml.safe_load((CONF / f"data/{name}.yaml").read_text())["document_start"]
    config = FileData(
        "file", level, path=str(tmp_path / "text.txt"), cache_dir=str(tmp_path / "cache"), document_start=pattern
    )
    corpus, plain = load_corpus(config, marked=True), load_corpus(config)
    start = first.strip() if level == "word" else first
    for split in SPLITS:
        tokens = corpus.splits[split]
        assert np.array_equal(without_marks(tokens), plain.splits[split])
        assert np.array_equal(np.flatnonzero(tokens < 0), corpus.documents[split])
        pieces = documents_of(corpus, split)
        assert all(piece.lstrip("\n").startswith(start) for piece in pieces[1:])
        assert sum(piece.count(start) for piece in pieces[1:]) == len(pieces) - 1
    assert len(corpus.documents["train"]) in (36, 37)  # the text before the first heading is one too


def test_the_sentences_of_lm1b_are_documents(tmp_path: Path) -> None:
    (tmp_path / "lm1b").mkdir()
    (tmp_path / "lm1b/heldout-1.tokens").write_text("the cat sat\na dog\n" * 40)
    config = Lm1bData("lm1b", "word", root=str(tmp_path), prefix=True, cache_dir=str(tmp_path / "cache"))
    config.batch_size, config.segment_len = 2, 7
    module = StreamsDataModule(config, EvaluationConfig(batch_size=2, segment_len=7), marked=True)
    assert (module.corpus.splits["valid"] < 0).sum() == len(module.corpus.sentences["valid"]) > 2
    for segment in (module.train_dataloader()[0], module.test_dataloader()[0]):
        marked = segment.tokens < 0
        assert (without_marks(segment.tokens.numpy())[marked] == module.corpus.vocabulary.numbers["<S>"]).all()
        assert marked.sum() >= 4


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"data.document_start=\(: must be a regular expression"),
        ("nowhere", "data.document_start=nowhere: must"),
        (None, "data.document_start=None: must match"),
    ],
)
def test_a_text_without_documents_is_refused(tmp_path: Path, pattern: str | None, words: str) -> None:
    (tmp_path / "text.txt").write_text(forty(ENWIK8))
    config = FileData("file", path=str(tmp_path / "text.txt"), cache_dir=str(tmp_path / "c"), document_start=pattern)
    config.batch_size, config.segment_len = 2, 8
    with pytest.raises(OptionError, match=words):
        StreamsDataModule(config, EvaluationConfig(batch_size=2, segment_len=8), marked=True)
