"""Attention length chosen on validation, and the scores of the other splits at it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measure.kept_figures import Figures, curves
from tests.measure.perplexity.scored import result
from tests.measure.perplexity.test_attention_lengths import direct
from tests.measure.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.measure.perplexity import first_tokens
from txl_lightning.runs.trained import load_trained

BOTH = ["test", "valid"]  # the choice does not depend on the order


def selected(runs: SmallRuns, kind: str, directory: Path, *lengths: int, **options: Any) -> dict[str, Any]:
    given = {"splits": BOTH, "select_on": "valid", "losses": True, "attention_lengths": list(lengths) or None}
    return result(runs, kind, directory, **given, **options)


def test_a_model_with_memory_is_scored_at_two_lengths(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    found = selected(runs, "characters", tmp_path, 4, 16, 24)
    valid, test = found["valid"]["sweep"], found["test"]["selected"]
    assert "sweep" not in found["test"]
    assert [row["attention_length"] for row in valid["lengths"]] == [4, 16, 24]
    assert test["chosen_on"] == "valid"
    assert test["attention_length"] == test["best"]["attention_length"] == valid["best"]["attention_length"]
    metrics = json.loads((runs.directory("characters") / "metrics.json").read_text())
    assert test["init"]["nll"] == found["test"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert test["init"]["evaluation"] == found["evaluation"]
    length = test["attention_length"]
    expected = direct(runs, "characters", 8, mem_len=length, same_length=True, clamp_len=15)
    assert test["best"]["nll"] == pytest.approx(expected, rel=1e-6)
    assert test["below_init"]["nll"] == pytest.approx(test["init"]["nll"] - test["best"]["nll"], rel=1e-6)
    for name in ("init", "best"):
        assert test[name]["losses"] == f"losses_test_{name}.npz"
        with np.load(tmp_path / test[name]["losses"]) as file:
            assert test[name]["nll"] == pytest.approx(file["nll"].mean(dtype=float), rel=1e-9)
    rows = []
    of_splits = {f"{length} (best on valid)": (test, test), str(valid["attention_length"]): (valid, valid["best"])}
    for (shortest, (scores, best)), split in zip(of_splits.items(), BOTH, strict=True):
        cells = [(scores["init"], 3), (scores["best"], 3), (best["below_init"], 4)]
        shown = [f"{row['bpc']:.{n}f} ± {row['standard_error']['bpc']:.{n}f}" for row, n in cells]
        rows.append(f"| {' | '.join([split, *shown, shortest])} |")
    assert (tmp_path / "attention_lengths.md").read_text().splitlines()[2:4] == rows
    points = sorted((row["attention_length"], row["bpc"]) for row in (valid["init"], *valid["lengths"]))
    curve = curves(drawn["attention_lengths.svg"].axes[0])["valid"]
    assert list(zip(*curve, strict=True)) == points


def test_without_memory_lengths_are_windows(runs: SmallRuns, tmp_path: Path) -> None:
    test = selected(runs, "no_memory", tmp_path, 4, 12)["test"]
    init = test["selected"]["init"]
    assert (init["attention_length"], init["evaluation"]["protocol"]) == (8, "window")
    assert init["nll"] == test["nll"] == pytest.approx(direct(runs, "no_memory", 2, 6, mem_len=0), rel=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "tokens"])
def test_a_model_without_attention_lengths_has_none_to_choose_from(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    for lengths in ((), (4, 8)):
        found = selected(runs, kind, tmp_path, *lengths)
        assert found["valid"]["sweep"] is None
        test = found["test"]["selected"]
        assert test["attention_length"] is test["init"]["attention_length"] is None
        assert test["init"] == test["best"]
        assert test["init"]["evaluation"]["protocol"] == "carried"
    metrics = json.loads((runs.directory(kind) / "metrics.json").read_text())
    assert test["init"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert metrics["evaluation"]["protocol"] == "carried"


def test_a_shorter_sweep_leaves_the_other_splits_whole(runs: SmallRuns, tmp_path: Path) -> None:
    found = selected(runs, "characters", tmp_path, 4, 12, sweep_tokens=50)
    assert found["valid"]["tokens"] == found["valid"]["sweep"]["lengths"][0]["tokens"] == 48
    assert np.load(tmp_path / found["valid"]["selected"]["init"]["losses"])["positions"].max() == 49
    tokens = load_corpus(load_trained(runs.checkpoint("characters")).config.data).splits["test"]
    assert found["test"]["tokens"] == len(tokens) - 2 - len(tokens) % 2


def test_sentences_stay_whole() -> None:
    corpus = Corpus(
        "text", {"valid": np.arange(20)}, Vocabulary("word", ("<S>",)), "", (), {"valid": np.array([0, 6, 11, 15])}
    )
    assert first_tokens(corpus, "valid", None) is corpus
    for n, kept, starts in ((12, 11, [0, 6]), (11, 11, [0, 6]), (3, 6, [0]), (19, 15, [0, 6, 11])):
        shorter = first_tokens(corpus, "valid", n)
        assert (len(shorter.splits["valid"]), shorter.sentences["valid"].tolist()) == (kept, starts)
