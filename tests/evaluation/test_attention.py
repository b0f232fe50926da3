"""txl attention: every cell, picture and value that it writes, and what it refuses."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.kept_figures import Figures
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation.attention import attention_maps, farthest_heads, run, text_attention
from txl_lightning.evaluation.attention_figures import most_attended
from txl_lightning.evaluation.options import AttentionOptions
from txl_lightning.evaluation.trained import load_trained


def written(runs: SmallRuns, kind: str, directory: Path, **given: Any) -> tuple[dict[str, Any], list[str]]:
    """Return `attention.json` and the printed lines."""
    logger = LoggerConfig(name="none")
    lines = run(AttentionOptions(runs.checkpoint(kind), num_threads=1, logger=logger, **given), directory)
    return json.loads((directory / "attention.json").read_text()), lines


def test_the_maps_of_every_head(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    started = time.perf_counter()
    found, lines = written(runs, "relative", tmp_path, mem_len=6, same_length=False)
    elapsed = time.perf_counter() - started
    path = runs.checkpoint("relative")
    trained = load_trained(path)
    corpus = load_corpus(trained.config.data)
    model: Any = trained.model.with_lengths(mem_len=6, same_length=False)
    maps = attention_maps(model, Streams(corpus.splits["valid"], 2, 8))
    with np.load(tmp_path / "attention.npz") as file:
        assert sorted(file) == ["a", "all", "b", "d"]
        for name, rows in maps.by_distance.items():
            np.testing.assert_allclose(file[name], rows, rtol=1e-6)
    for name, rows in (("by_distance", "all"), ("terms", "a")):  # the query itself is the last column
        shown = np.asarray(drawn[f"{name}.svg"].axes[0].get_images()[0].get_array())
        np.testing.assert_allclose(shown, np.maximum(maps.by_distance[rows][:, ::-1], 0.1 / 7), rtol=1e-6)
    row = "| {layer} | {head} | {entropy_bits:.2f} | {mean_distance:.1f} | {in_memory:.1%} |"
    farthest_six = sorted(found["heads"], key=lambda one: -one["mean_distance"])[:6]
    assert lines[3:-2] == [row.format(**one).replace("%", "") for one in farthest_six]
    for name, expected in maps.averages.items():
        np.testing.assert_allclose([one[name] for one in found["heads"]], expected, rtol=1e-5, atol=1e-9)
    H = model.config.n_head
    heads = [(n + 1, h + 1) for n in range(model.config.n_layer) for h in range(H)]
    assert [(one["layer"], one["head"]) for one in found.pop("heads")] == heads
    farthest = maps.averages["mean_distance"].reshape(-1, H).argmax(axis=1)
    assert 0 < found.pop("seconds") < elapsed + 0.01
    lengths = {"mem_len": 6, "ext_len": 0, "same_length": False, "clamp_len": -1, "segment_len": 8, "batch_size": 2}
    place = {"position": len(corpus.splits["valid"]) // 2, "targets": 8}
    assert found == {
        "checkpoint": path, "step": 2, "corpus": {"name": "text.txt", "sha256": corpus.checksum}, "split": "valid",
        "evaluation": lengths, "encoding": "relative", "terms": "abcd", "distances": 7, "queries": maps.queries,
        "text": {**place, "heads": [f"1:{farthest[0] + 1}", f"2:{farthest[1] + 1}"]},
    }  # fmt: skip
    figures = {f"{name}.{kind}" for name in ("by_distance", "text", "terms") for kind in ("png", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == {"attention.json", "attention.npz", *figures}


def test_a_model_without_memory_is_looked_at_within_its_segment(runs: SmallRuns, tmp_path: Path) -> None:
    results, _ = written(runs, "absolute", tmp_path)
    assert results["distances"] == results["text"]["targets"] == 4  # half of the segment
    assert {head["in_memory"] for head in results["heads"]} == {0.0}
    assert sorted(np.load(tmp_path / "attention.npz")) == ["a", "all"]


@pytest.mark.parametrize(("kind", "terms"), [("rope", "a"), ("alibi", "ad"), ("none", "a")])
def test_terms_that_an_encoding_lacks(runs: SmallRuns, tmp_path: Path, kind: str, terms: str) -> None:
    assert written(runs, kind, tmp_path, mem_len=24, max_segments=4)[0]["terms"] == terms


def test_terms_lengths_and_splits_that_are_asked_for_are_used(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    given = {"mem_len": 5, "same_length": False, "split": "test", "segment_len": 6, "batch_size": 3, "max_segments": 4}
    results, _ = written(runs, "shaw", tmp_path, heads=["1:2", "2:1"], text_position=40, **given)
    assert (results["distances"], results["queries"], results["terms"]) == (6, 3 * (4 * 6 - 5), "ab")
    assert results["text"] == {"position": 40, "targets": 6, "heads": ["1:2", "2:1"]}
    titles = [axes.get_title(loc="left") for axes in drawn["text.svg"].axes]
    assert titles[:2] == ["layer 1, head 2", "layer 2, head 1"]


def test_the_farthest_heads_are_those_of_the_first_the_middle_and_the_last_layer() -> None:
    distances = np.zeros((16, 10))
    distances[[0, 7, 15, 3], [7, 7, 7, 1]] = 1
    for n_layer, expected in ((16, ["1:8", "8:8", "16:8"]), (2, ["1:8", "2:1"]), (1, ["1:8"])):
        assert farthest_heads(distances[:n_layer].ravel(), 10) == expected


def test_distances_beyond_training_are_clamped(runs: SmallRuns, tmp_path: Path) -> None:
    for given, clamp_len in (({"mem_len": 16}, -1), ({"mem_len": 17}, 15), ({"mem_len": 17, "clamp_len": -1}, -1)):
        results, _ = written(runs, "relative", tmp_path, max_segments=6, **given)
        assert results["evaluation"]["clamp_len"] == clamp_len


def test_the_most_attended_tokens_are_drawn_apart(runs: SmallRuns, tmp_path: Path, drawn: Figures) -> None:
    found, _ = written(runs, "absolute", tmp_path)
    trained = load_trained(runs.checkpoint("absolute"))
    tokens = load_corpus(trained.config.data).splits["valid"]
    text = text_attention(trained.model, tokens, trained.vocabulary, None, None, 8)
    weights = text.weights[found["text"]["heads"][0]]
    apart, seen = most_attended(weights), np.maximum(weights, weights.max() / 1e3)
    axes = drawn["text.svg"].axes[0]
    others, marked = (np.ma.asarray(image.get_array()).filled(-1) for image in axes.get_images())
    np.testing.assert_allclose(marked, np.where(apart, seen, -1), atol=1e-3)
    np.testing.assert_allclose(others, np.where(apart | (weights == 0), -1, seen), atol=1e-3)
    assert len(axes.get_xticklabels()) == len(text.context)


def test_a_fifth_of_the_tokens_is_marked_in_every_row() -> None:
    weights = np.random.default_rng(0).random((4, 20))
    weights[1, 2:] = 0
    marked = most_attended(weights)
    assert marked.sum(axis=1).tolist() == [4, 2, 4, 4]
    for row, of_row in zip(weights, marked, strict=True):
        assert not of_row.any() or row[of_row].min() > row[~of_row].max()
