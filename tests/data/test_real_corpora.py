"""Real corpora, if TXL_DATA has them; loading compares their sizes with the published ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.config.schemas import data_class
from txl_lightning.data.corpus import Corpus, load_corpus

ROOT = Path(os.environ.get("TXL_DATA", ""))
pytestmark = pytest.mark.skipif("TXL_DATA" not in os.environ, reason="TXL_DATA is not set: there are no real corpora")


def load(tmp_path: Path, needs: str, name: str, level: str, **options: object) -> Corpus:
    if not (ROOT / needs).is_file():
        pytest.skip(f"{needs} is not in TXL_DATA")
    return load_corpus(data_class(name)(name=name, level=level, cache_dir=str(tmp_path), **options))


def test_words_of_wikitext_2_are_ordered_by_count(tmp_path: Path) -> None:
    corpus = load(tmp_path, "wikitext-2/wiki.train.tokens", "wikitext-2", "word")
    assert corpus.vocabulary.symbols[:6] == ("<eos>", "the", ",", ".", "of", "<unk>")
    counts = np.bincount(corpus.splits["train"], minlength=len(corpus.vocabulary))
    assert (np.diff(counts[1:]) <= 0).all()
    assert counts[0] == 36_718, "one <eos> for every line, blank ones too"


def test_wikitext_103_evaluates_with_the_vocabulary_of_the_whole_training_split(tmp_path: Path) -> None:
    corpus = load(tmp_path, "wikitext-103/wiki.train.prefix.tokens", "wikitext-103", "word", prefix=True)
    # Its place in the published vocabulary: 441,959 times, after "is" and before "his".
    assert (len(corpus.vocabulary), corpus.vocabulary.numbers["<unk>"]) == (267_735, 24)
    assert sum(corpus.splits["test"] == 24) == 2_492, "no word of the true splits is unknown but <unk> itself"
