"""Text whose dependencies are known: its statistics, and its entropy against the exact model."""

from math import log
from pathlib import Path

import numpy as np
import pytest
import yaml

from examples import recall_oracle
from examples.recall_oracle import RecallOracle
from tests.data.helpers import text_of
from txl_lightning.config.schemas import CONF, RecallData
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.recall import CHARACTERS, Recall
from txl_lightning.recl.windows import WindowReader, window_losses

ONE = Recall((12,), 0.9, 8)


def load(folder: Path, **options: object) -> Corpus:
    given = {
        "distance": 12,
        "n_tokens": 20_000,
        "cache_dir": str(folder),
        **options,
    }
    return load_corpus(RecallData(name="recall", level="char", **given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "recall",
    [
        ONE,
        Recall((4, 4, 8, 12), 0.8, 4),
    ],
    ids=["one", "lanes"],
)
def test_the_entropy_is_the_mean_loss_of_the_exact_model(recall):
    n = 300_000
    tokens = np.frombuffer(
        recall.text(n, seed=3).encode(),
        np.uint8,
    )
    positions = np.arange(16, n, 11)
    reader = WindowReader(RecallOracle(recall), one_pass=True)
    for c in (1, 3, 4, 8, 11, 12, 16):
        losses = window_losses(reader, tokens, positions, [c])[0]
        error = losses.std() / np.sqrt(len(losses))
        assert abs(losses.mean() - recall.entropy(c)) <= 3 * error + 1e-12


def test_the_closed_forms_and_the_default_of_the_example():
    assert ONE.entropy(11) == log(8)
    assert ONE.entropy(12) == pytest.approx(-0.9125 * log(0.9125) - 7 * 0.0125 * log(0.0125))
    options = yaml.safe_load((CONF / "data/recall.yaml").read_text())
    default = Recall(
        (options["distance"],),
        options["repeats"],
        options["symbols"],
    )
    assert recall_oracle.TEXT == recall_oracle.oracle().text == default


def test_the_corpus_is_the_text_in_three_splits_and_needs_no_file(tmp_path):
    corpus = load(tmp_path)
    assert text_of(corpus) == ONE.text(20_000, 1)
    assert [len(corpus.splits[split]) for split in SPLITS] == [18_000, 1_000, 1_000]
    assert corpus.vocabulary.symbols == ("<unk>", *CHARACTERS[:8])


@pytest.mark.parametrize(
    ("options", "is_same"),
    [
        ({"seed": 7}, True),  # of a run
        ({"text_seed": 2}, False),
        ({"distance": [12]}, True),
        ({"distance": [4, 8]}, False),
    ],
)
def test_the_seed_of_the_text_and_its_distances_make_another_text(tmp_path, options, is_same):
    assert (load(tmp_path, **options).checksum == load(tmp_path).checksum) == is_same
