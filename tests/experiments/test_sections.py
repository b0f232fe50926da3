"""What the tables compute from what the jobs left."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from experiments.engine.jobs import RUNS, composed
from experiments.engine.profiles import PROFILES
from experiments.engine.setup import Setup
from experiments.paper import result
from experiments.report.cells import over_seeds
from experiments.tables import figures_5_to_7, main_results, shuffled, table_6
from experiments.tables.arms import Arm, training
from txl_lightning.data.corpora.corpus import load_corpus


def test_the_gain_of_longer_attention_is_over_the_best_that_training_had() -> None:
    lengths = {32: 2.0, 64: 1.9, 96: 1.7, 128: 1.7004}
    run = table_6.Measured(init=1.85, trained=64, lengths=lengths, tolerance=0.001, tokens=1, limit=None)
    assert run.beyond == pytest.approx(0.15)
    assert (run.best, run.attention_length) == (1.7, 96)
    limited = replace(run, lengths={32: 2.0, 64: 1.9}, limit=64)
    assert limited.beyond is None
    assert (limited.best, limited.attention_length) == (1.85, 64)
    assert table_6.beyond({1: limited}, "bpc") is None


def test_half_loss_without_recurrence_is_scored_where_it_was_trained(tmp_path: Path) -> None:
    setup = Setup(PROFILES["laptop"], (), tmp_path)
    full, half = (composed(training(Arm(False, "absolute", loss), 1, setup).overrides) for loss in ("full", "half"))
    assert (full.evaluation.segment_len, full.evaluation.ext_len) == (32, None)
    assert (half.evaluation.segment_len, half.evaluation.ext_len) == (16, 16)
    spans = [c.evaluation.segment_len * (c.evaluation.max_segments or 0) for c in (full, half)]
    assert spans[0] == spans[1]
    sweep = table_6.sweep(training(Arm(False, "relative", "half"), 1, setup), setup)
    assert {"ext_len=0", "segment_len=32", "max_segments=50"} <= set(sweep.overrides)


def test_a_mean_over_seeds_has_the_standard_error_of_the_mean() -> None:
    cell = over_seeds({1: 1.0, 2: 2.0, 3: 3.0, 4: 6.0}, 3)
    assert cell is not None
    values = np.array([1.0, 2.0, 3.0, 6.0])
    assert cell["value"] == pytest.approx(values.mean())
    assert cell["standard_error"] == pytest.approx(values.std(ddof=1) / 2)
    assert "standard_error" not in (over_seeds({1: 1.0}, 3) or {})


def test_what_the_attention_table_measures() -> None:
    uniform, first = np.full((1, 5), 0.1), np.array([[0.4, 0.0, 0.0, 0.0, 0.0]])  # rows need not sum to 1
    rows = figures_5_to_7.shares(np.concatenate([uniform, first]))
    assert rows.sum(axis=1) == pytest.approx([1, 1])
    assert figures_5_to_7.flatness(rows) == pytest.approx([1, 0])
    assert figures_5_to_7.mean_distance(rows) == pytest.approx([2, 0])
    table = figures_5_to_7.table({"all": first, "a": uniform, "b": first, "d": uniform})
    unlike = {row["arm"]["text"][:3]: row["unlike"] for row in table["rows"]}
    assert unlike["(b)"]["value"] == pytest.approx(0)
    assert unlike["(a)"]["value"] == pytest.approx(0.8)


def test_shuffled_lines_are_the_same_lines_in_another_order() -> None:
    text = "".join(f"line {i}\n\n" for i in range(200))
    once, again = shuffled.shuffle(text, "train"), shuffled.shuffle(text, "train")
    assert once == again != shuffled.shuffle(text, "valid")
    lines = once.decode().splitlines()
    assert Counter(lines) == Counter(line for line in text.splitlines() if line)
    neighbours = sum(int(b.split()[1]) - int(a.split()[1]) == 1 for a, b in pairwise(lines))
    assert neighbours < 10


def test_a_text_without_lines_is_cut_into_pieces() -> None:
    words = [f"w{i}" for i in range(5000)]
    shuffled_text = shuffled.shuffle(" ".join(words), "train").decode()
    assert sorted(shuffled_text.split()) == sorted(words)
    assert shuffled_text.count("\n") == 200


def test_the_shuffled_corpus_keeps_the_splits_apart(tmp_path: Path) -> None:
    text = "".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(2000))
    (tmp_path / "book.txt").write_text(text)
    words = ("data=file", f"data.path={tmp_path}/book.txt", f"data.cache_dir={tmp_path}/cache")
    setup = Setup(PROFILES["smoke"], words, tmp_path / "report")
    corpus = shuffled.shuffled_lines(setup)
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


def test_every_published_row_is_in_the_papers_tables() -> None:
    extra = {"text8_base"}  # the original's configuration of a model that Table 3 does not list
    for name, (table, model) in main_results.PUBLISHED.items():
        if name not in extra:
            assert result(main_results.TABLES[table], model)
    for rows in main_results.NEAREST.values():
        for table, model in rows.values():
            assert result(main_results.TABLES[table], model)
