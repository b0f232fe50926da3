"""Real corpora, if TXL_DATA has them: published counts, and the content of a prefix."""

import os
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.streams import ShuffledStreams

ROOT = os.environ.get("TXL_DATA")
pytestmark = pytest.mark.skipif(ROOT is None, reason="TXL_DATA is not set: there are no real corpora to read")


def load(tmp_path: Path, needs: str, name: str, level: str, **options: object) -> Corpus:
    if not (Path(ROOT or "") / needs).is_file():
        pytest.skip(f"{needs} is not in TXL_DATA")
    return load_corpus(DataConfig(name=name, level=level, cache_dir=str(tmp_path), **options))


def sizes(corpus: Corpus) -> list[int]:
    return [len(corpus.splits[split]) for split in SPLITS]


def test_wikitext_2_has_the_published_counts(tmp_path: Path) -> None:
    corpus = load(tmp_path, "wikitext-2/wiki.train.tokens", "wikitext-2", "word")
    assert sizes(corpus) == [2_088_628, 217_646, 245_569]
    assert len(corpus.vocabulary) == 33_278
    assert corpus.vocabulary.symbols[:6] == ("<eos>", "the", ",", ".", "of", "<unk>")
    counts = np.bincount(corpus.splits["train"], minlength=len(corpus.vocabulary))
    assert (np.diff(counts[1:]) <= 0).all(), "words are ordered by count"
    assert counts[0] == 36_718, "one <eos> for every line, blank ones too"
    assert corpus.vocabulary.decode(corpus.splits["valid"][:6]) == "\n= Homarus gammarus =\n"


def test_wikitext_103_evaluates_with_the_vocabulary_of_the_whole_training_split(tmp_path: Path) -> None:
    needs = "wikitext-103/wiki.train.prefix.tokens"
    corpus = load(tmp_path, needs, "wikitext-103", "word", prefix=True)
    assert corpus.name == "wikitext-103.prefix"
    assert sizes(corpus)[1:] == [217_646, 245_569]
    assert len(corpus.vocabulary) == 267_735
    assert corpus.vocabulary.symbols[:2] == ("<eos>", "the")
    # Its place in the published vocabulary: 441,959 times, after "is" and before "his".
    assert corpus.vocabulary.numbers["<unk>"] == 24
    assert corpus.cutoffs == (20_000, 40_000, 200_000)
    assert sum(corpus.splits["test"] == 24) == 2_492, "no word of the true splits is unknown but <unk> itself"


def test_enwik8s_prefix_both_ways(tmp_path: Path) -> None:
    needs = "enwik8/enwik8.prefix"
    content = (Path(ROOT or "") / needs).read_bytes() if (Path(ROOT or "") / needs).is_file() else b""
    kept = load(tmp_path, needs, "enwik8", "byte", prefix=True, newlines="kept")
    dropped = load(tmp_path, needs, "enwik8", "byte", prefix=True)
    assert kept.name == "enwik8.prefix, newlines kept"
    assert sum(sizes(kept)) == len(content)
    assert sum(sizes(dropped)) == len(content) - content.count(b"\n")
    assert len(kept.vocabulary) == len(dropped.vocabulary) + 1 == len(set(content))
    text = b"".join(bytes(ord(kept.vocabulary.symbols[t]) for t in kept.splits[split]) for split in ("valid", "test"))
    assert content.endswith(text)


def test_text8s_prefix_has_27_symbols(tmp_path: Path) -> None:
    corpus = load(tmp_path, "text8/text8.prefix", "text8", "char", prefix=True)
    assert corpus.name == "text8.prefix"
    assert "".join(sorted(corpus.vocabulary.symbols)) == " abcdefghijklmnopqrstuvwxyz"
    assert corpus.vocabulary.decode(corpus.splits["train"][:20]) == " anarchism originate"


def test_lm1bs_shards_stream_sentence_by_sentence(tmp_path: Path) -> None:
    corpus = load(tmp_path, "lm1b/heldout-00010-00011.tokens", "lm1b", "word", prefix=True)
    assert corpus.name == "lm1b.heldout-00010-00011+heldout-00012-00013"
    assert sum(sizes(corpus)) == 322_706 + 318_286
    assert sum(len(corpus.sentences[split]) for split in SPLITS) == 12_216 + 12_105
    streams = ShuffledStreams(corpus.splits["train"], corpus.sentences["train"], batch_size=16, segment_len=32)
    mark = corpus.vocabulary.numbers["<S>"]
    n_marks = 0
    for segment in streams:
        assert not ((segment.tokens == mark) & (segment.targets == mark)).any()
        n_marks += int((segment.targets == mark).sum())
    assert streams.n_targets > 0.98 * len(corpus.splits["train"])
    assert n_marks > 0.98 * len(corpus.sentences["train"])
