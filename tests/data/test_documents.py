"""Files of a folder as documents."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.errors import OptionError

TEXTS = {"b/second.txt": "zwei\nacht", "a.txt": "eins drei ", "c.txt": "vier fünf sechs\n" * 20, "d.txt": "drei"}


def folder_of(texts: dict[str, str], root: Path) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def corpus_of(path: object, cache: Path, **options: object) -> Corpus:
    return load_corpus(DataConfig(name="file", path=path, cache_dir=str(cache), **options))


def documents_of(corpus: Corpus, split: str) -> list[str]:
    tokens, starts = corpus.splits[split], corpus.documents[split].tolist()
    return [corpus.vocabulary.decode(tokens[a:b]) for a, b in pairwise([*starts, len(tokens)])]


@pytest.mark.parametrize("level", ["byte", "char"])
def test_files_of_a_folder_are_documents_in_the_order_of_their_paths(tmp_path: Path, level: str) -> None:
    folder = folder_of({**TEXTS, ".hidden": "nothing", "empty.txt": ""}, tmp_path / "texts")
    corpus = corpus_of(str(folder), tmp_path / "cache", level=level)
    documents = [document for split in SPLITS for document in documents_of(corpus, split)]
    assert documents[:2] == [TEXTS["a.txt"], TEXTS["b/second.txt"]]
    assert documents[-1] == TEXTS["d.txt"]
    assert "".join(documents[2:-1]) == TEXTS["c.txt"]  # in all three splits
    assert corpus.name == "texts"


def test_words_of_two_documents_are_never_joined(tmp_path: Path) -> None:
    folder = folder_of(TEXTS, tmp_path / "texts")
    corpus = corpus_of(str(folder), tmp_path / "cache", level="word")
    assert documents_of(corpus, "train")[:2] == ["eins drei\n", "zwei\nacht\n"]
    assert {"drei", "acht"} <= set(corpus.vocabulary.symbols)


def test_a_list_of_files_is_sorted_and_one_file_is_one_document(tmp_path: Path) -> None:
    folder = folder_of(TEXTS, tmp_path / "texts")
    listed = corpus_of([str(folder / "c.txt"), str(folder / "a.txt")], tmp_path / "cache")
    assert documents_of(listed, "train")[0] == TEXTS["a.txt"]
    assert listed.name == "c.txt and 1 more"
    alone = corpus_of(str(folder / "c.txt"), tmp_path / "cache")
    assert all(np.array_equal(alone.documents[split], [0]) for split in SPLITS)


@pytest.mark.parametrize(
    ("given", "words"),
    [([], "must be a file"), (3, "must be a file"), ("nowhere", "cannot be read"), ("empty", "must not be empty")],
)
def test_paths_without_a_text_are_refused(tmp_path: Path, given: object, words: str) -> None:
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / given) if isinstance(given, str) else given
    with pytest.raises(OptionError, match=words):
        corpus_of(path, tmp_path / "cache")
