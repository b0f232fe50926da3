"""The attention length chosen on one split (Table 6), column by column, against scores taken one at a time."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.kept_figures import Figures, curves
from tests.evaluation.scored import losses, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.attention_lengths import first_tokens
from txl_lightning.evaluation.losses import stream_losses
from txl_lightning.evaluation.trained import load_trained

BOTH = ["test", "valid"]  # their order has no effect


def direct(
    runs: SmallRuns, kind: str, split: str, segment_len: int, ext_len: int = 0, **lengths: Any
) -> float:
    """Return the mean loss of a split at given lengths."""
    trained = load_trained(runs.checkpoint(kind))
    tokens = load_corpus(trained.config.data).splits[split]
    model: Any = trained.model.with_lengths(ext_len=ext_len, **lengths)
    return stream_losses(model, Streams(tokens, 2, segment_len, ext_len)).mean


def metrics(runs: SmallRuns, kind: str) -> dict[str, float]:
    """Return the results of training."""
    return json.loads((runs.directory(kind) / "metrics.json").read_text())


def test_memory_is_varied_with_the_same_attention_length_for_all_tokens(
    runs: SmallRuns, tmp_path: Path
) -> None:
    found = result(
        runs,
        "characters",
        tmp_path,
        splits=BOTH,
        attention_lengths=[24, 4, 12, 12],
    )
    sweep = found["valid"]["sweep"]
    rows = sweep["lengths"]
    assert [row["attention_length"] for row in rows] == [4, 12, 24]
    assert [row["evaluation"]["clamp_len"] for row in rows] == [-1, -1, 15]
    for row in rows:
        lengths = {"mem_len": row["attention_length"], "same_length": True}
        lengths["clamp_len"] = row["evaluation"]["clamp_len"]
        expected = direct(runs, "characters", "valid", 8, **lengths)
        assert row["nll"] == pytest.approx(expected, rel=1e-6)
        assert row["bpc"] == pytest.approx(
            expected / math.log(2),
            rel=1e-6,
        )
    init = sweep["init"]
    assert init["nll"] == pytest.approx(
        metrics(runs, "characters")["val/nll"],
        rel=1e-6,
    )
    assert init["attention_length"] == 16
    everything = [init, *rows]
    assert sweep["best"]["nll"] == min(row["nll"] for row in everything)
    limit = sweep["best"]["bpc"] + 0.0005
    reaching = [row["attention_length"] for row in everything if row["bpc"] <= limit]
    assert sweep["attention_length"] == min(reaching)


def test_absolute_positions_use_extended_context_as_far_as_they_go(
    runs: SmallRuns, tmp_path: Path
) -> None:
    options = {
        "segment_len": 6,
        "ext_len": 0,
        "attention_lengths": [3, 9, 10, 50, 500],
    }
    sweep = result(
        runs,
        "extended",
        tmp_path,
        splits=BOTH,
        **options,
    )["valid"]["sweep"]
    assert sweep["length_option"] == "ext_len"
    assert [row["attention_length"] for row in sweep["lengths"]] == [3, 9, 10]
    rows = [*sweep["lengths"], sweep["init"]]
    lengths = [
        (1, 2),
        (2, 7),
        (2, 8),
        (2, 8),
    ]
    for row, (segment_len, ext_len) in zip(rows, lengths, strict=True):
        expected = direct(runs, "extended", "valid", segment_len, ext_len, mem_len=0)
        assert row["nll"] == pytest.approx(expected, rel=1e-6)


def test_a_length_is_chosen_on_one_split_for_the_others(
    runs: SmallRuns, tmp_path: Path, drawn: Figures
) -> None:
    lengths = [4, 16, 24]
    found = result(
        runs, "characters", tmp_path, splits=BOTH, attention_lengths=lengths, losses=True
    )
    sweep = found["valid"]["sweep"]
    assert "sweep" not in found["test"]
    selected = found["test"]["selected"]
    length = sweep["best"]["attention_length"]
    assert selected["chosen_on"] == "valid"
    assert selected["attention_length"] == selected["best"]["attention_length"] == length
    assert selected["init"]["evaluation"] == found["evaluation"]
    assert selected["init"]["nll"] == found["test"]["nll"]
    given = {"mem_len": length, "same_length": True, "clamp_len": 15}
    expected = direct(runs, "characters", "test", 8, **given)
    assert selected["best"]["nll"] == pytest.approx(expected, rel=1e-6)
    for name in ("init", "best"):
        nll, _ = losses(tmp_path / selected[name]["losses"])
        assert selected[name]["nll"] == pytest.approx(
            nll.mean(dtype=float),
            rel=1e-9,
        )
    shown, values = curves(drawn["attention_lengths.svg"].axes[0])["valid"]
    assert shown == lengths
    assert values[-1] == sweep["lengths"][-1]["bpc"]


def test_a_shorter_sweep_leaves_the_other_splits_whole(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"splits": BOTH, "attention_lengths": [4]}
    found = result(runs, "characters", tmp_path, sweep_tokens=50, **options)
    assert found["valid"]["tokens"] == found["valid"]["sweep"]["lengths"][0]["tokens"] == 48
    tokens = load_corpus(load_trained(runs.checkpoint("characters")).config.data).splits["test"]
    assert found["test"]["tokens"] == len(tokens) - 2 - len(tokens) % 2


SENTENCES = [
    (12, 11, 2),
    (11, 11, 2),
    (3, 6, 1),
    (19, 15, 3),
]


@pytest.mark.parametrize(("n", "n_tokens", "n_sentences"), SENTENCES)
def test_sentences_stay_whole(n: int, n_tokens: int, n_sentences: int) -> None:
    vocabulary = Vocabulary("word", ("<S>",))
    starts = np.array([0, 6, 11, 15])
    corpus = Corpus(
        "text",
        {"valid": np.arange(20)},
        vocabulary,
        "",
        (),
        {"valid": starts},
    )
    shorter = first_tokens(corpus, n)
    assert len(shorter.splits["valid"]) == n_tokens
    assert shorter.sentences["valid"].tolist() == starts[:n_sentences].tolist()
    assert first_tokens(corpus, None) is corpus
