"""Sweeps of the attention length (Table 6), column by column, against scores taken one at a time."""

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
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run
from txl_lightning.evaluation.trained import load_trained

SELECTED = {"splits": ["test", "valid"], "select_on": "valid", "losses": True}  # the order of splits has no effect


def direct(runs: SmallRuns, kind: str, segment_len: int, ext_len: int = 0, **lengths: Any) -> float:
    """Return the mean loss of the test split at given lengths."""
    trained = load_trained(runs.checkpoint(kind))
    tokens = load_corpus(trained.config.data).splits["test"]
    model: Any = trained.model.with_lengths(ext_len=ext_len, **lengths)
    return stream_losses(model, Streams(tokens, 2, segment_len, ext_len)).mean


def test_memory_is_varied_with_the_same_attention_length_for_all_tokens(runs: SmallRuns, tmp_path: Path) -> None:
    sweep = result(runs, "characters", tmp_path, attention_lengths=[24, 4, 12, 12])["test"]["sweep"]
    assert sweep.items() >= {"length_option": "mem_len", "limit": None, "unit": "bpc", "tolerance": 0.0005}.items()
    assert [row["attention_length"] for row in sweep["lengths"]] == [4, 12, 24]
    assert [row["evaluation"]["clamp_len"] for row in sweep["lengths"]] == [-1, -1, 15]
    for row in sweep["lengths"]:
        clamp_len = row["evaluation"]["clamp_len"]
        expected = direct(runs, "characters", 8, mem_len=row["attention_length"], same_length=True, clamp_len=clamp_len)
        assert row["nll"] == pytest.approx(expected, rel=1e-6)
        assert row["bpc"] == pytest.approx(expected / math.log(2), rel=1e-6)
    metrics = json.loads((runs.directory("characters") / "metrics.json").read_text())
    init = sweep["init"]
    assert init["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert init["attention_length"] == 16
    rows = [*sweep["lengths"], init]
    best = sweep["best"]
    assert best["nll"] == min(row["nll"] for row in rows)
    assert best["below_init"]["nll"] == pytest.approx(init["nll"] - best["nll"], abs=1e-12)
    reaching = [row["attention_length"] for row in rows if row["bpc"] <= best["bpc"] + 0.0005]
    assert sweep["attention_length"] == min(reaching)


def test_init_uses_the_lengths_of_training_with_any_evaluation_lengths(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"segment_len": 4, "mem_len": 30, "clamp_len": 5, "same_length": False, "max_segments": 6}
    found = result(runs, "characters", tmp_path, attention_lengths=[10], **options)["test"]
    init = found["sweep"]["init"]
    (row,) = found["sweep"]["lengths"]
    lengths = {"segment_len": 8, "mem_len": 8, "ext_len": 0, "same_length": False, "clamp_len": -1, "max_segments": 3}
    assert init["evaluation"].items() >= lengths.items()
    assert init["tokens"] == row["tokens"] == found["tokens"]
    assert row["evaluation"]["same_length"] is False


def test_absolute_positions_use_extended_context_as_far_as_they_go(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"segment_len": 6, "ext_len": 0, "attention_lengths": [3, 9, 10, 50, 500]}
    sweep = result(runs, "extended", tmp_path, **options)["test"]["sweep"]
    assert (sweep["length_option"], sweep["limit"]) == ("ext_len", 10)
    assert [row["attention_length"] for row in sweep["lengths"]] == [3, 9, 10]
    for row, (segment_len, ext_len) in zip(sweep["lengths"], [(1, 2), (2, 7), (2, 8)], strict=True):
        assert row["nll"] == pytest.approx(direct(runs, "extended", segment_len, ext_len, mem_len=0), rel=1e-6)
    assert sweep["init"]["attention_length"] == 10
    assert sweep["init"]["nll"] == pytest.approx(direct(runs, "extended", 2, 8, mem_len=0), rel=1e-6)


def test_table_and_figures_are_written(runs: SmallRuns, tmp_path: Path, pictures: None) -> None:
    lines = run(EvaluateOptions(runs.checkpoint("characters"), attention_lengths=[4, 8], num_threads=1), tmp_path)
    assert [line.split(" ")[0] for line in lines[:2]] == ["valid:", "test:"]
    table = (tmp_path / "attention_lengths.md").read_text()
    assert "\n".join(lines).endswith(table.rstrip("\n"))
    assert (tmp_path / "attention_lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "attention_lengths.svg").read_text()


def test_a_length_is_chosen_on_one_split_for_the_others(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    found = result(runs, "characters", tmp_path, attention_lengths=[4, 16, 24], **SELECTED)
    sweep = found["valid"]["sweep"]
    test = found["test"]["selected"]
    assert "sweep" not in found["test"]
    length = sweep["best"]["attention_length"]
    assert test["chosen_on"] == "valid"
    assert test["attention_length"] == test["best"]["attention_length"] == length
    assert test["init"]["evaluation"] == found["evaluation"]
    assert test["init"]["nll"] == found["test"]["nll"]
    expected = direct(runs, "characters", 8, mem_len=length, same_length=True, clamp_len=15)
    assert test["best"]["nll"] == pytest.approx(expected, rel=1e-6)
    assert test["below_init"]["nll"] == pytest.approx(test["init"]["nll"] - test["best"]["nll"], rel=1e-6)
    for name in ("init", "best"):
        nll, _ = losses(tmp_path / test[name]["losses"])
        assert test[name]["nll"] == pytest.approx(nll.mean(dtype=float), rel=1e-9)
    points = [(row["attention_length"], row["bpc"]) for row in (sweep["init"], *sweep["lengths"][::2])]
    lengths, values = curves(drawn["attention_lengths.svg"].axes[0])["valid"]
    assert set(zip(lengths, values, strict=True)) >= set(points[1:])
    row = (tmp_path / "attention_lengths.md").read_text().splitlines()[2].split(" | ")
    assert row[0] == "| test"
    assert row[1] == f"{test['init']['bpc']:.3f} ± {test['init']['standard_error']['bpc']:.3f}"
    assert row[4] == f"{length} (best on valid) |"


@pytest.mark.parametrize("kind", ["lstm", "tokens"])
def test_a_model_without_attention_lengths_has_none_to_choose_from(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    found = result(runs, kind, tmp_path, attention_lengths=[4, 8], **SELECTED)
    assert found["valid"]["sweep"] is None
    test = found["test"]["selected"]
    assert test["attention_length"] is test["init"]["attention_length"] is None
    assert test["init"] == test["best"]
    metrics = json.loads((runs.directory(kind) / "metrics.json").read_text())
    assert test["init"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)


def test_a_shorter_sweep_leaves_the_other_splits_whole(runs: SmallRuns, tmp_path: Path) -> None:
    found = result(runs, "characters", tmp_path, attention_lengths=[4], sweep_tokens=50, **SELECTED)
    assert found["valid"]["tokens"] == found["valid"]["sweep"]["lengths"][0]["tokens"] == 48
    tokens = load_corpus(load_trained(runs.checkpoint("characters")).config.data).splits["test"]
    assert found["test"]["tokens"] == len(tokens) - 2 - len(tokens) % 2


@pytest.mark.parametrize(("n", "n_tokens", "n_sentences"), [(12, 11, 2), (11, 11, 2), (3, 6, 1), (19, 15, 3)])
def test_sentences_stay_whole(n: int, n_tokens: int, n_sentences: int) -> None:
    vocabulary = Vocabulary("word", ("<S>",))
    starts = np.array([0, 6, 11, 15])
    corpus = Corpus("text", {"valid": np.arange(20)}, vocabulary, "", (), {"valid": starts})
    shorter = first_tokens(corpus, "valid", n)
    assert len(shorter.splits["valid"]) == n_tokens
    assert shorter.sentences["valid"].tolist() == starts[:n_sentences].tolist()
    assert first_tokens(corpus, "valid", None) is corpus
