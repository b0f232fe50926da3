"""Attention length chosen on validation, and the scores of the other splits at it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.kept_figures import Figures, curves
from tests.evaluation.perplexity.scored import result
from tests.evaluation.perplexity.test_attention_lengths import direct
from tests.evaluation.perplexity.test_evaluate_values import losses
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.perplexity import first_tokens
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
    length = valid["best"]["attention_length"]
    assert (test["chosen_on"], test["attention_length"], test["best"]["attention_length"]) == ("valid", length, length)
    metrics = json.loads((runs.directory("characters") / "metrics.json").read_text())
    assert test["init"]["nll"] == found["test"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert test["init"]["evaluation"] == found["evaluation"]
    expected = direct(runs, "characters", 8, mem_len=length, same_length=True, clamp_len=15)
    assert test["best"]["nll"] == pytest.approx(expected, rel=1e-6)
    assert test["below_init"]["nll"] == pytest.approx(test["init"]["nll"] - test["best"]["nll"], rel=1e-6)
    for name in ("init", "best"):
        nll, _ = losses(tmp_path / test[name]["losses"])
        assert test[name]["nll"] == pytest.approx(nll.mean(dtype=float), rel=1e-9)
    rows = []
    of_splits = {f"{length} (best on valid)": (test, test), str(valid["attention_length"]): (valid, valid["best"])}
    for (shortest, (scores, best)), split in zip(of_splits.items(), BOTH, strict=True):
        cells = [(scores["init"], 3), (scores["best"], 3), (best["below_init"], 4)]
        shown = [f"{row['bpc']:.{n}f} ± {row['standard_error']['bpc']:.{n}f}" for row, n in cells]
        rows.append(f"| {' | '.join([split, *shown, shortest])} |")
    assert (tmp_path / "attention_lengths.md").read_text().splitlines()[2:4] == rows
    points = sorted((row["attention_length"], row["bpc"]) for row in (valid["init"], *valid["lengths"]))
    assert [*zip(*curves(drawn["attention_lengths.svg"].axes[0])["valid"], strict=True)] == points


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
    vocabulary, starts = Vocabulary("word", ("<S>",)), np.array([0, 6, 11, 15])
    corpus = Corpus("text", {"valid": np.arange(20)}, vocabulary, "", (), {"valid": starts})
    assert first_tokens(corpus, "valid", None) is corpus
    for n, kept, n_starts in ((12, 11, 2), (11, 11, 2), (3, 6, 1), (19, 15, 3)):
        shorter = first_tokens(corpus, "valid", n)
        assert (len(shorter.splits["valid"]), [*shorter.sentences["valid"]]) == (kept, [*starts[:n_starts]])
