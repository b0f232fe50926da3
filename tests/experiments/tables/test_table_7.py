"""Table 7: the corpus of shuffled lines."""

from collections import Counter
from pathlib import Path

from experiments.engine.jobs import RUNS, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables import table_7
from tests.experiments.tables.sample_outcomes import small_corpus
from txl_lightning.data.corpus import load_corpus


def test_shuffled_lines_are_the_same_lines_in_another_order_that_depends_on_the_split() -> None:
    lines = [f"line {i}" for i in range(200)]
    once, again = (table_7.shuffle("\n\n".join(lines), "train").decode().splitlines() for _ in range(2))
    assert once == again != table_7.shuffle("\n\n".join(lines), "valid").decode().splitlines()
    assert (sorted(once), once != lines) == (sorted(lines), True)
    words = [f"w{i}" for i in range(5000)]  # a text without lines is cut into pieces
    pieces = table_7.shuffle(" ".join(words), "train").decode()
    assert (sorted(pieces.split()), pieces.count("\n")) == (sorted(words), 200)


def test_the_shuffled_corpus_keeps_the_splits_apart_and_is_written_again_if_cut_off(tmp_path: Path) -> None:
    words = small_corpus(tmp_path)
    setup = Setup(PROFILES["smoke"], words, tmp_path / "report")
    corpus = table_7.shuffled_lines(setup)
    assert not any(str(tmp_path) in word for word in corpus.overrides)  # a report can be moved
    setup.runs.mkdir()
    there = tuple(word.replace(RUNS, str(setup.runs)) for word in corpus.overrides)
    new, old = (load_corpus(composed(("profile=smoke", *chosen, words[-1])).data) for chosen in (there, words))
    for split in ("train", "valid", "test"):
        ours, theirs = (Counter(c.vocabulary.decode(c.splits[split]).split("\n")) for c in (new, old))
        assert ours - theirs <= Counter({"": 1})
    (whole,) = setup.directory.glob("corpora/*.txt")
    text = whole.read_bytes()
    for path in (whole, whole.with_suffix(".json")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert table_7.shuffled_lines(setup) == corpus
        assert whole.read_bytes() == text
