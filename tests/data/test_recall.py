"""Text whose dependencies are known: its statistics, and its entropy against the exact model."""

from math import log
from pathlib import Path

import numpy as np
import pytest

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
        "name": "recall",
        "level": "char",
        "distance": 12,
        "cache_dir": str(folder),
        **options,
    }
    return load_corpus(RecallData(**given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "recall",
    [ONE, Recall((4, 4, 8, 12), 0.8, 4)],
    ids=["one", "lanes"],
)
def test_the_entropy_is_the_mean_loss_of_the_exact_model(recall):
    n, longest = 300_000, 16
    tokens = np.frombuffer(
        recall.text(n, seed=3).encode(),
        np.uint8,
    )
    positions = np.sort(
        np.random.default_rng(1).choice(
            np.arange(longest, n),
            30_000,
            replace=False,
        )
    )
    reader = WindowReader(RecallOracle(recall), one_pass=True)
    for c in (1, 3, 4, 8, 11, 12, 16):
        losses = window_losses(reader, tokens, positions, [c])[0]
        error = losses.std() / np.sqrt(len(losses))
        assert abs(losses.mean() - recall.entropy(c)) <= 3 * error + 1e-12


def test_the_closed_forms_and_the_default_of_the_example():
    assert ONE.entropy(11) == log(8)
    assert ONE.entropy(12) == pytest.approx(-0.9125 * log(0.9125) - 7 * 0.0125 * log(0.0125))
    options = dict(
        line.split(
            ": ",
            1,
        )
        for line in (CONF / "data/recall.yaml").read_text().splitlines()[3:]
    )
    default = Recall(
        (int(options["distance"]),), float(options["repeats"]), int(options["symbols"])
    )
    assert recall_oracle.TEXT == recall_oracle.oracle().text == default


def test_the_corpus_is_the_text_in_three_splits_and_needs_no_file(tmp_path):
    corpus = load(tmp_path, n_tokens=20_000)
    assert text_of(corpus) == Recall((12,), 0.9, 8).text(20_000, 1)
    assert [len(corpus.splits[split]) for split in SPLITS] == [18_000, 1_000, 1_000]
    assert corpus.vocabulary.symbols == ("<unk>", *CHARACTERS[:8])
    others = ({"seed": 7}, {"text_seed": 2}, {"distance": [12]}, {"distance": [4, 8]})
    checksums = [
        load(
            tmp_path,
            n_tokens=20_000,
            **other,
        ).checksum
        for other in others
    ]
    # A run's seed changes nothing, and a list of one distance is the distance.
    assert [checksum == corpus.checksum for checksum in checksums] == [True, False, True, False]
