"""txl evaluate in Python: lengths, protocols, splits, per-token losses, and what it refuses."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.covering import product_of
from tests.evaluation.perplexity.scored import result
from tests.evaluation.perplexity.test_evaluate_values import losses
from tests.evaluation.small_runs import SmallRuns
from tests.training.small_run import tiny_config
from txl_lightning.config.lengths import evaluation_lengths
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run
from txl_lightning.runs.trained import checkpoint_corpus, load_trained
from txl_lightning.training.run import train

UNCACHED = ["compressive", "tokens", "tokens_states"]
KINDS = ["characters", "documents", "extended", "al_rfou", "shaw_words", "rope", "alibi", "none", "lstm"]
KINDS += UNCACHED


@pytest.mark.parametrize(("kind", "cached"), product_of(KINDS, [True, False]))
def test_a_checkpoint_scores_what_its_run_did(runs: SmallRuns, tmp_path: Path, kind: str, cached: bool) -> None:
    metrics = json.loads((runs.directory(kind) / "metrics.json").read_text())
    validation = json.loads((runs.directory(kind) / "validation.jsonl").read_text().splitlines()[-1])
    ours = result(runs, kind, tmp_path, splits=["valid", "test"], cached=cached)
    assert ours["valid"]["nll"] == pytest.approx(metrics["val/nll"], rel=1e-6)
    assert ours["valid"]["nll"] == pytest.approx(validation["val/nll"], rel=1e-6)
    assert ours["test"]["nll"] == pytest.approx(metrics["test/nll"], rel=1e-6)
    assert ours["evaluation"]["cached"] is (cached and kind not in ("lstm", *UNCACHED))
    del metrics["evaluation"]["streams_start"]
    assert ours["evaluation"].items() >= metrics["evaluation"].items()


def test_shorter_segments_and_fewer_streams_score_as_many_tokens_of_a_run_with_a_limit(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "evaluation.max_segments=3", "trainer.max_steps=5"), tmp_path / "run")
    found = []
    for options in ({}, {"segment_len": 1}, {"batch_size": 1}, {"segment_len": 1, "max_segments": 3}):
        run(EvaluateOptions(str(tmp_path / "run/checkpoints/best.ckpt"), splits=["valid"], **options), tmp_path)
        found.append(json.loads((tmp_path / "evaluation.json").read_text())["valid"]["tokens"])
    assert found[0] == found[1] == found[2] > found[3]


def test_a_longer_memory_changes_the_score_and_is_stated(runs: SmallRuns, tmp_path: Path) -> None:
    scores = set()
    for mem_len in (0, 8, 40):
        (line,) = run(EvaluateOptions(runs.checkpoint("characters"), splits=["test"], mem_len=mem_len), tmp_path)
        assert f"(protocol {f'carried, mem_len {mem_len}' if mem_len else 'window, ext_len 6'}, " in line
        assert f"segment_len {8 if mem_len else 2}, batch_size 2, cached, precision 32-true; left out" in line
        scores.add(line.split()[2])
    assert len(scores) == 3


def test_a_longer_segment_leaves_the_memory_as_it_is(runs: SmallRuns, tmp_path: Path) -> None:
    """It was 0 without a word: training's memory and segment, 8 and 8, minus 16 (the rule of the paper's train.py)."""
    given = result(runs, "characters", tmp_path, segment_len=16)["evaluation"]
    assert (given["protocol"], given["mem_len"]) == ("carried", 8)
    for segment_len in (4, 16):
        config = tiny_config(tmp_path, f"evaluation.segment_len={segment_len}", "memory=on")
        assert evaluation_lengths(config).memory == 8


@torch.no_grad()
@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": 3, "ext_len": 5, "mem_len": 0}])
def test_losses_are_in_the_order_of_the_text(runs: SmallRuns, tmp_path: Path, options: dict) -> None:
    result(runs, "characters", tmp_path, losses=True, **options)
    nll, positions = losses(tmp_path / "losses_test.npz")
    trained = load_trained(runs.checkpoint("characters"))
    tokens = torch.from_numpy(load_corpus(trained.config.data).splits["test"].astype(np.int64))
    vars(trained.config.evaluation).update(options)
    model: Any = trained.model.with_lengths(**evaluation_lengths(trained.config).keywords())
    expected: dict[int, float] = {}
    length, T, E = len(tokens) // 3, 8, options.get("ext_len", 0)
    for column in range(3):
        memory, first = None, column * length
        for start in range(0, length - 1, T):
            stop = min(start + T, length - 1)
            window = tokens[None, first + max(0, start - E) : first + stop]
            targets = tokens[None, first + start + 1 : first + stop + 1]
            nll_BT, memory = model.score(window, targets, memory)
            expected |= {first + start + 1 + i: loss for i, loss in enumerate(nll_BT[0].tolist())}
    assert positions.tolist() == sorted(expected)
    np.testing.assert_allclose(nll, [expected[p] for p in positions.tolist()], atol=1e-5)


def test_the_sliding_window_scores_one_stream(runs: SmallRuns, tmp_path: Path) -> None:
    tokens = load_corpus(load_trained(runs.checkpoint("characters")).config.data).splits["test"]
    ours = result(runs, "characters", tmp_path, protocol="window", window=6, stride=1, losses=True)
    lengths = {"protocol": "window", "window": 6, "stride": 1, "clamp_len": -1, "batch_size": 1, "max_segments": None}
    assert ours["evaluation"] == {**lengths, "precision": "32-true"}
    assert ours["test"]["tokens"] == len(tokens) - 1
    assert losses(tmp_path / "losses_test.npz")[1].tolist() == [*range(1, len(tokens))]
    lengths = {"window": 16, "stride": 8}  # memory and segment of training, and half of it
    assert result(runs, "characters", tmp_path, protocol="window")["evaluation"].items() >= lengths.items()
    capped = result(runs, "extended", tmp_path, protocol="window", window=100, max_segments=3)
    assert (capped["evaluation"]["window"], capped["test"]["tokens"]) == (10, 15)
    assert result(runs, "lstm", tmp_path, protocol="window", stride=4)["evaluation"]["clamp_len"] is None


def test_another_text_is_read_in_the_checkpoints_vocabulary(runs: SmallRuns, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("the line 9: a short square\n" * 40)  # fewer letters, other counts
    for kind in ("characters", "lstm"):
        assert math.isfinite(result(runs, kind, tmp_path, data_path=str(other))["test"]["nll"])
        whole = result(runs, kind, tmp_path, data_path=str(other), splits=[], batch_size=1)["whole"]
        assert whole["tokens"] == other.stat().st_size - 1  # all but the first
    other.write_text("line 9")  # too short for three parts
    assert result(runs, "characters", tmp_path, data_path=str(other), splits=[], batch_size=1)["whole"]["tokens"] == 5
    own = result(runs, "characters", tmp_path)
    same = result(runs, "characters", tmp_path, data_path=str(runs.folder / "text.txt"), splits=[])  # it moved
    assert same["test"]["nll"] == pytest.approx(own["test"]["nll"], rel=1e-6)
    assert (same["corpus"], same["test"]["tokens"]) == (own["corpus"], own["test"]["tokens"])
    other.write_text("words that are unknown become <unk> for words\n" * 40)
    assert result(runs, "shaw_words", tmp_path, data_path=str(other))["test"]["tokens"] > 0


def test_a_text_for_a_model_of_sentences_has_the_marks_of_its_corpus(runs: SmallRuns, tmp_path: Path) -> None:
    checkpoint = runs.checkpoint("sentences")
    trained, path = load_trained(checkpoint), {split: str(runs.folder / f"lm1b/{split}.txt") for split in SPLITS}
    own, given = (checkpoint_corpus(trained, checkpoint, data_path) for data_path in (None, path))
    assert own.vocabulary.decode(without_marks(own.splits["test"])).count("\n\nthe cat sat") > 10
    for split in SPLITS:
        assert np.array_equal(given.splits[split], own.splits[split])
        assert np.array_equal(given.sentences[split], own.sentences[split])
    results = [result(runs, "sentences", tmp_path, **chosen)["test"] for chosen in ({}, {"data_path": path})]
    assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}
