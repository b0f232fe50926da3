"""Real corpora, if TXL_DATA has them; loading compares their sizes with the published ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus

ROOT = Path(os.environ.get("TXL_DATA", ""))
pytestmark = pytest.mark.skipif("TXL_DATA" not in os.environ, reason="TXL_DATA is not set: there are no real corpora")


def load(tmp_path: Path, needs: str, name: str, level: str, **options: object) -> Corpus:
    if not (ROOT / needs).is_file():
        pytest.skip(f"{needs} is not in TXL_DATA")
    return load_corpus(DataConfig(name=name, level=level, cache_dir=str(tmp_path), **options))


def n_tokens(corpus: Corpus) -> int:
    return sum(len(corpus.splits[split]) for split in SPLITS)


def test_words_of_wikitext_2_are_ordered_by_count(tmp_path: Path) -> None:
    corpus = load(tmp_path, "wikitext-2/wiki.train.tokens", "wikitext-2", "word")
    assert corpus.vocabulary.symbols[:6] == ("<eos>", "the", ",", ".", "of", "<unk>")
    counts = np.bincount(corpus.splits["train"], minlength=len(corpus.vocabulary))
    assert (np.diff(counts[1:]) <= 0).all()
    assert counts[0] == 36_718, "one <eos> for every line, blank ones too"
    assert corpus.vocabulary.decode(corpus.splits["valid"][:6]) == "\n= Homarus gammarus =\n"


def test_wikitext_103_evaluates_with_the_vocabulary_of_the_whole_training_split(tmp_path: Path) -> None:
    corpus = load(tmp_path, "wikitext-103/wiki.train.prefix.tokens", "wikitext-103", "word", prefix=True)
    assert len(corpus.vocabulary) == 267_735
    # Its place in the published vocabulary: 441,959 times, after "is" and before "his".
    assert corpus.vocabulary.numbers["<unk>"] == 24
    assert corpus.cutoffs == (20_000, 40_000, 200_000)
    assert sum(corpus.splits["test"] == 24) == 2_492, "no word of the true splits is unknown but <unk> itself"


def test_prefixes_of_characters_and_sentences(tmp_path: Path) -> None:
    content = (ROOT / "enwik8/enwik8.prefix").read_bytes() if (ROOT / "enwik8/enwik8.prefix").is_file() else b""
    kept = load(tmp_path, "enwik8/enwik8.prefix", "enwik8", "byte", prefix=True, newlines="kept")
    dropped = load(tmp_path, "enwik8/enwik8.prefix", "enwik8", "byte", prefix=True)
    assert (n_tokens(kept), n_tokens(dropped)) == (len(content), len(content) - content.count(b"\n"))
    assert len(kept.vocabulary) == len(dropped.vocabulary) + 1 == len(set(content))
    text8 = load(tmp_path, "text8/text8.prefix", "text8", "char", prefix=True)
    assert "".join(sorted(text8.vocabulary.symbols)) == " abcdefghijklmnopqrstuvwxyz"
    lm1b = load(tmp_path, "lm1b/heldout-00010-00011.tokens", "lm1b", "word", prefix=True)
    assert n_tokens(lm1b) == 322_706 + 318_286
    assert sum(len(lm1b.sentences[split]) for split in SPLITS) == 12_216 + 12_105
