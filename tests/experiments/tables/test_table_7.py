"""Table 7: the corpus of shuffled lines."""

from collections import Counter
from pathlib import Path

from experiments.engine.jobs import RUNS, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_7
from tests.experiments.tables.sample_outcomes import small_corpus
from txl_lightning.data.corpus import Corpus, load_corpus


def test_lines_are_shuffled_by_the_name_of_their_split() -> None:
    lines = [f"line {i}" for i in range(200)]
    text = "\n\n".join(lines)
    shuffled = table_7.shuffle(text, "train")
    assert shuffled == table_7.shuffle(text, "train")
    assert shuffled != table_7.shuffle(text, "valid")
    assert shuffled.decode().splitlines() != lines
    assert sorted(shuffled.decode().splitlines()) == sorted(lines)


def test_a_text_without_lines_is_cut_into_pieces() -> None:
    words = [f"w{i}" for i in range(5000)]
    pieces = table_7.shuffle(" ".join(words), "train").decode()
    assert sorted(pieces.split()) == sorted(words)
    assert pieces.count("\n") == 200


def lines_of(corpus: Corpus, split: str) -> Counter[str]:
    return Counter(corpus.vocabulary.decode(corpus.splits[split]).split("\n"))


def test_the_shuffled_corpus_keeps_the_splits_apart(tmp_path: Path) -> None:
    words = small_corpus(tmp_path)
    setup = Setup(PROFILES["smoke"], words, tmp_path / "report")
    overrides = table_7.shuffled_lines(setup)
    assert overrides == table_7.shuffled_lines(setup)
    assert not any(str(tmp_path) in word for word in overrides)  # a report can be moved
    setup.runs.mkdir()
    there = [word.replace(RUNS, str(setup.runs)) for word in overrides]
    shuffled = load_corpus(composed(("profile=smoke", *there, f"data.cache_dir={tmp_path}")).data)
    original = load_corpus(composed(("profile=smoke", *words)).data)
    for split in ("train", "valid", "test"):
        assert lines_of(shuffled, split) - lines_of(original, split) <= Counter({"": 1})
