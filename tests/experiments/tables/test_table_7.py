"""Table 7: the corpus of shuffled lines."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

from experiments.engine.jobs import RUNS, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_7
from txl_lightning.data.corpus import load_corpus


def test_shuffled_lines_are_the_same_lines_in_another_order() -> None:
    text = "".join(f"line {i}\n\n" for i in range(200))
    once, again = table_7.shuffle(text, "train"), table_7.shuffle(text, "train")
    assert once == again != table_7.shuffle(text, "valid")
    lines = once.decode().splitlines()
    assert Counter(lines) == Counter(line for line in text.splitlines() if line)
    neighbours = sum(int(b.split()[1]) - int(a.split()[1]) == 1 for a, b in pairwise(lines))
    assert neighbours < 10


def test_a_text_without_lines_is_cut_into_pieces() -> None:
    words = [f"w{i}" for i in range(5000)]
    shuffled_text = table_7.shuffle(" ".join(words), "train").decode()
    assert sorted(shuffled_text.split()) == sorted(words)
    assert shuffled_text.count("\n") == 200


def test_the_shuffled_corpus_keeps_the_splits_apart(tmp_path: Path) -> None:
    text = "".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(2000))
    (tmp_path / "book.txt").write_text(text)
    words = ("data=file", f"data.path={tmp_path}/book.txt", f"data.cache_dir={tmp_path}/cache")
    setup = Setup(PROFILES["smoke"], words, tmp_path / "report")
    corpus = table_7.shuffled_lines(setup)
    assert not any(str(tmp_path) in word for word in corpus.overrides)  # a report can be moved
    there = tuple(word.replace(RUNS, str(setup.runs)) for word in corpus.overrides)
    setup.runs.mkdir()
    new = load_corpus(composed(("profile=smoke", *there, words[-1])).data)
    old = load_corpus(composed(("profile=smoke", *words)).data)
    for split in ("train", "valid", "test"):
        ours, theirs = new.splits[split], old.splits[split]
        assert Counter(new.vocabulary.decode(ours).split("\n")) - Counter(
            old.vocabulary.decode(theirs).split("\n")
        ) <= (Counter({"": 1}))


def test_a_shuffled_text_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(400)))
    words = ("data=file", f"data.path={tmp_path}/book.txt", f"data.cache_dir={tmp_path}/cache")
    setup = Setup(PROFILES["smoke"], words, tmp_path / "report")
    corpus = table_7.shuffled_lines(setup)
    (whole,) = setup.directory.glob("corpora/*.txt")
    text = whole.read_bytes()
    for path in (whole, whole.with_suffix(".json")):
        for length in (0, path.stat().st_size // 2):
            path.write_bytes(path.read_bytes()[:length])
            assert table_7.shuffled_lines(setup) == corpus
            assert whole.read_bytes() == text
