"""txl attention: every cell, picture and value that it writes, and what it refuses."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measure.kept_figures import Figures
from tests.measure.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.errors import UserError
from txl_lightning.measure.attention import (
    TextAttention,
    attention_maps,
    farthest_heads,
    most_attended,
    run,
    write_report,
)
from txl_lightning.measure.options import AttentionOptions
from txl_lightning.runs.trained import load_trained

NO_LOGGER = LoggerConfig(name="none")


def options(runs: SmallRuns, kind: str, **given: Any) -> AttentionOptions:
    return AttentionOptions(runs.checkpoint(kind), **{"num_threads": 1, "logger": NO_LOGGER, **given})


def written(runs: SmallRuns, kind: str, directory: Path, **given: Any) -> tuple[dict[str, Any], list[str]]:
    """Return `attention.json` and the printed lines."""
    lines = run(options(runs, kind, **given), directory)
    return json.loads((directory / "attention.json").read_text()), lines


def test_the_json_has_the_maps_of_every_head(runs: SmallRuns, tmp_path: Path) -> None:
    started = time.perf_counter()
    found, _ = written(runs, "relative", tmp_path, mem_len=6, same_length=False)
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
    for name, expected in maps.averages.items():
        np.testing.assert_allclose([one[name] for one in found["heads"]], expected, rtol=1e-5, atol=1e-9)
    H = model.config.n_head
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [
        (n + 1, h + 1) for n in range(model.config.n_layer) for h in range(H)
    ]
    farthest = maps.averages["mean_distance"].reshape(-1, H).argmax(axis=1)
    assert 0 < found["seconds"] < elapsed + 0.01
    assert found == {
        "checkpoint": path, "step": 2, "corpus": {"name": "text.txt", "sha256": corpus.checksum}, "split": "valid",
        "evaluation": {
            "mem_len": 6, "ext_len": 0, "same_length": False, "clamp_len": -1, "segment_len": 8, "batch_size": 2
        },
        "encoding": "relative", "terms": "abcd", "distances": 7, "queries": maps.queries,
        "heads": found["heads"], "seconds": found["seconds"],
        "text": {
            "position": len(corpus.splits["valid"]) // 2, "targets": 8,
            "heads": [f"1:{farthest[0] + 1}", f"2:{farthest[1] + 1}"],
        },
    }  # fmt: skip
    figures = {f"{name}.{kind}" for name in ("by_distance", "text", "terms") for kind in ("png", "svg")}
    names = {"attention.json", "attention.npz", *figures}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_model_without_memory_is_looked_at_within_its_segment(runs: SmallRuns, tmp_path: Path) -> None:
    results, _ = written(runs, "absolute", tmp_path)
    assert results["distances"] == results["text"]["targets"] == 4  # half of the segment
    assert {head["in_memory"] for head in results["heads"]} == {0.0}
    assert sorted(np.load(tmp_path / "attention.npz")) == ["a", "all"]


@pytest.mark.parametrize(("kind", "terms"), [("rope", "a"), ("alibi", "ad"), ("none", "a")])
def test_terms_that_an_encoding_lacks(runs: SmallRuns, tmp_path: Path, kind: str, terms: str) -> None:
    assert written(runs, kind, tmp_path, mem_len=24, max_segments=4)[0]["terms"] == terms


def test_terms_that_are_off_are_named_and_other_lengths_and_splits_are_used(
    runs: SmallRuns, tmp_path: Path, drawn: Figures
) -> None:
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
        assert farthest_heads(distances[:n_layer]) == expected


def test_distances_beyond_training_are_clamped(runs: SmallRuns, tmp_path: Path) -> None:
    for given, clamp_len in (({"mem_len": 16}, -1), ({"mem_len": 17}, 15), ({"mem_len": 17, "clamp_len": -1}, -1)):
        results, _ = written(runs, "relative", tmp_path, max_segments=6, **given)
        assert results["evaluation"]["clamp_len"] == clamp_len


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("lstm", {}, r"checkpoint=.*: is lstm; must be a Transformer-XL"),
        ("compressive", {}, r"checkpoint=.*: is txl_smoke; must be a Transformer-XL whose keys are its tokens"),
        ("tokens", {}, r"checkpoint=.*: is txl_smoke; must be a Transformer-XL whose keys are its tokens"),
        ("relative", {"mem_len": -1}, "^mem_len=-1: must be an integer >= 0"),
        ("relative", {"mem_len": 60, "max_segments": 7}, "mem_len=60: must be shorter: no query sees 60 keys"),
        ("relative", {"batch_size": 100_000}, "^batch_size=100000"),
        ("relative", {"heads": ["1:1", "0:1"]}, "heads=0:1: must be LAYER:HEAD, layers 1 … 2 and heads 1 …"),
        ("relative", {"text_position": 2}, "text_position=2: must be in"),
        ("relative", {"mem_len": 0, "segment_len": 1}, "text_tokens=1: must be in 1 … 0"),
    ],
)
def test_impossible_choices_are_named(runs: SmallRuns, tmp_path: Path, kind: str, given: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(options(runs, kind, **given), tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def head(layer: int, number: int, distance: float, memory: float) -> dict[str, Any]:
    averages = {"entropy_bits": distance / 10, "mean_distance": distance, "in_memory": memory}
    return {"layer": layer, "head": number, **averages}


HEADS = [head(1, 1, 5.5, 0.5), head(1, 2, 12.34, 0.25), head(2, 1, 7.25, 0.125), head(2, 2, 1.5, 0.875)]
ROWS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.5, 0.4, 0.1]])
WEIGHTS = np.array([[0.0, 0.5, 0.2], [0.1, 0.3, 0.6]])
MARKED = np.array([[False, True, False], [False, False, True]])


def report(directory: Path, heads: list[dict[str, Any]] = HEADS) -> list[str]:
    """Write the report of results that are made up."""
    results = {
        "heads": heads, "corpus": {"name": "text"}, "split": "valid", "queries": 12345, "distances": 3,
        "evaluation": {"mem_len": 3, "segment_len": 8, "batch_size": 2}, "encoding": "shaw", "terms": "ab",
        "text": {"heads": ["2:1"]},
    }  # fmt: skip
    text = TextAttention(40, {"1:1": WEIGHTS[::-1], "2:1": WEIGHTS}, ["x", "y"], ["a", "b", "c"])
    maps = {"all": ROWS, "a": ROWS[::-1].copy()}
    return write_report(results, maps, text, directory)


def test_every_cell_of_the_tables(tmp_path: Path) -> None:
    lines = report(tmp_path)
    assert lines == [
        "Heads with the largest mean distance, 4 of 4:",
        "| layer | head | entropy (bits) | mean distance (tokens) | in the memory (%) |",
        "| ---: | ---: | ---: | ---: | ---: |",
        "| 1 | 2 | 1.23 | 12.3 | 25.0 |",
        "| 2 | 1 | 0.72 | 7.2 | 12.5 |",
        "| 1 | 1 | 0.55 | 5.5 | 50.0 |",
        "| 2 | 2 | 0.15 | 1.5 | 87.5 |",
        "",
        "Average over the 12,345 tokens of text (valid) that see all 3 relative positions 0 … −2; 0 is the query "
        "itself, the last token read (mem_len 3, segment_len 8, batch_size 2).",
    ]


def test_the_figures_show_heads_by_relative_position_and_targets_by_tokens_of_the_memory(
    tmp_path: Path, drawn: Figures
) -> None:
    """The query itself, distance 0, is the last column of Figures 5 and 7; Figure 6 has the marked tokens apart."""
    report(tmp_path)
    for name, rows, panel in (("by_distance", ROWS, ""), ("terms", ROWS[::-1], "softmax of (a) content")):
        axes, _ = drawn[f"{name}.svg"].axes
        np.testing.assert_array_equal(np.asarray(axes.get_images()[0].get_array()), rows[:, ::-1])
        assert (axes.get_title(), axes.get_xlabel()) == (panel, "relative position j − i (tokens)")
    axes, _ = drawn["text.svg"].axes
    others, marked = (np.ma.asarray(image.get_array()) for image in axes.get_images())
    np.testing.assert_array_equal(marked.filled(-1), np.where(MARKED, WEIGHTS, -1))
    np.testing.assert_array_equal(others.filled(-1), np.where(MARKED | (WEIGHTS == 0), -1, WEIGHTS))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]


def test_a_fifth_of_the_tokens_is_marked_in_every_row() -> None:
    weights = np.random.default_rng(0).random((4, 20))
    weights[1, 2:] = 0
    marked = most_attended(weights)
    assert marked.sum(axis=1).tolist() == [4, 2, 4, 4]
    for row, of_row in zip(weights, marked, strict=True):
        assert not of_row.any() or row[of_row].min() > row[~of_row].max()
