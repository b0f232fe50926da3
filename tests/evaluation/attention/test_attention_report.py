"""Tables and figures of `txl attention` from results that are made up, and its JSON beside the maps."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.kept_figures import Figures
from tests.evaluation.logged_panels import logged_panels
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.evaluation.attention.command import run
from txl_lightning.evaluation.attention.maps import TextAttention, attention_maps
from txl_lightning.evaluation.attention.options import AttentionOptions
from txl_lightning.evaluation.attention.report import write_report
from txl_lightning.runs.trained import load_trained

NO_LOGGER = LoggerConfig(name="none")


def head(layer: int, number: int, distance: float, memory: float, beyond: float = 0.0) -> dict[str, Any]:
    entropy = distance / 10
    shares = {"in_segment": 1 - memory, "in_memory": memory, "beyond": beyond}
    return {"layer": layer, "head": number, "entropy_bits": entropy, "mean_distance": distance, **shares}


def results(*heads: dict[str, Any]) -> dict[str, Any]:
    return {
        "heads": list(heads), "corpus": {"name": "text"}, "split": "valid", "queries": 12345, "distances": 3,
        "evaluation": {"mem_len": 3, "segment_len": 8, "batch_size": 2}, "missing_terms": ["d"], "encoding": "shaw",
        "terms": "ab",
    }  # fmt: skip


HEADS = (head(1, 1, 12.34, 0.25), head(1, 2, 5.5, 0.5, 0.031), head(2, 1, 7.25, 0.125), head(2, 2, 1.5, 0.875))
ROWS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.5, 0.4, 0.1]])
MAPS = {"all": ROWS, "a": ROWS[::-1].copy()}
WEIGHTS = np.array([[0.0, 0.5, 0.2], [0.1, 0.3, 0.6]])
MARKED = np.array([[False, True, False], [False, False, True]])
TEXT = TextAttention(40, {(1, 0): WEIGHTS}, {(1, 0): MARKED}, ["x", "y"], ["a", "b", "c"])


def test_every_cell_of_the_tables(tmp_path: Path) -> None:
    lines = write_report(results(*HEADS), MAPS, TEXT, tmp_path, NO_LOGGER)
    text = (tmp_path / "attention.md").read_text()
    assert text.splitlines() == [
        "| layer | head | entropy (bits) | mean distance (tokens) | in the segment (%) | in the memory (%) |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 1 | 1 | 1.23 | 12.3 | 75.0 | 25.0 |",
        "| 1 | 2 | 0.55 | 5.5 | 50.0 | 50.0 |",
        "| 2 | 1 | 0.72 | 7.2 | 87.5 | 12.5 |",
        "| 2 | 2 | 0.15 | 1.5 | 12.5 | 87.5 |",
        "",
        "Average over the 12,345 tokens of text (valid) that see all 3 relative positions 0 … −2; 0 is the query "
        "itself, the last token read. Memory 3, segments of 8, 2 streams.",
        "Figure 5 leaves out farther tokens, at most 3.1% of a head's attention (same_length=true gives every token "
        "the same number); entropy, distance and shares include them.",
        "Figure 7: the model has no term (d) (encoding=shaw, terms='ab').",
    ]
    assert lines == text.splitlines()
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == [dict(one) for one in HEADS]


def test_the_farthest_and_the_nearest_heads_are_printed(tmp_path: Path) -> None:
    distances = [5, 80, 20, 70, 30, 60, 40, 50]
    heads = [head(1, i + 1, float(distance), 0.5) for i, distance in enumerate(distances)]
    maps = {"all": np.full((8, 3), 1 / 3)}
    lines = write_report(results(*heads), maps, TEXT, tmp_path, NO_LOGGER)
    assert lines[0] == "The 3 heads with the largest and the smallest mean distance, of 8:"
    assert [line.split(" | ")[3] for line in lines[3:9]] == ["80.0", "70.0", "60.0", "30.0", "20.0", "5.0"]


def test_figures_5_and_7_show_heads_by_relative_position(tmp_path: Path, drawn: Figures) -> None:
    write_report(results(*HEADS), MAPS, TEXT, tmp_path, NO_LOGGER)
    for name, rows, panel in (("by_distance", MAPS["all"], ""), ("terms", MAPS["a"], "softmax of (a) content")):
        axes, bar = drawn[f"{name}.svg"].axes
        (image,) = axes.get_images()
        np.testing.assert_array_equal(np.asarray(image.get_array()), rows[:, ::-1])
        # The query itself, distance 0, is the last column, around x = 0; the first head is the row around y = 0.
        assert tuple(image.get_extent()) == (-2.5, 0.5, 3.5, -0.5)
        assert image.norm.vmin == pytest.approx(0.1 / 3)
        assert image.norm.vmax == 0.7
        assert (axes.get_title(), axes.get_xlabel()) == (panel, "relative position j − i (tokens)")
        assert [line.get_ydata()[0] for line in axes.get_lines()] == [1.5]  # between the layers
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["layer 1", "layer 2"]
        assert axes.get_yticks().tolist() == [0.5, 2.5]
        assert [tick.get_text() for tick in axes.get_yticklabels(minor=True)] == ["1", "2", "1", "2"]
        assert [line.get_xdata()[0] for line in bar.get_lines()] == [1 / 3]
    titles = {name: str(figure.get_suptitle()).replace("\n", " ") for name, figure in drawn.items()}
    assert titles["by_distance.svg"] == "Where 4 heads attend: average over 12,345 tokens of text (valid)"
    assert titles["text.svg"] == "Attention on the memory, from token 40 of text (valid) on"


def test_figure_6_shows_targets_and_the_tokens_of_the_memory(tmp_path: Path, drawn: Figures) -> None:
    write_report(results(*HEADS), MAPS, TEXT, tmp_path, NO_LOGGER)
    axes, *_ = drawn["text.svg"].axes
    others, marked = (np.ma.asarray(image.get_array()) for image in axes.get_images())
    np.testing.assert_array_equal(marked.filled(-1), np.where(MARKED, WEIGHTS, -1))
    np.testing.assert_array_equal(others.filled(-1), np.where(MARKED | (WEIGHTS == 0), -1, WEIGHTS))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["x", "y"]
    assert axes.get_title(loc="left") == "layer 2, head 1"
    assert (axes.get_images()[0].norm.vmax, axes.get_images()[0].norm.vmin) == (0.6, pytest.approx(0.6e-3))
    assert [bar.get_ylabel() or bar.get_xlabel() for bar in drawn["text.svg"].axes[1:]] == [
        "attention of the marked (share of 1)", "attention of the others (share of 1)"
    ]  # fmt: skip


def test_panels_are_those_of_table_and_figures(tmp_path: Path) -> None:
    with logged_panels() as panels:
        write_report(results(*HEADS), MAPS, TEXT, tmp_path, LoggerConfig(name="wandb"))
    assert panels["attention/heads"][1][0] == ["1", "1", "1.23", "12.3", "75.0", "25.0"]
    assert panels["attention/by_distance"][0] == tmp_path / "by_distance.png"
    assert {"attention/text", "attention/terms"} <= set(panels)


def test_the_json_has_the_maps_of_every_head(runs: SmallRuns, tmp_path: Path) -> None:
    path = runs.checkpoint("relative")
    started = time.perf_counter()
    run(AttentionOptions(path, mem_len=6, same_length=False, num_threads=1, logger=NO_LOGGER), tmp_path)
    elapsed = time.perf_counter() - started
    found = json.loads((tmp_path / "attention.json").read_text())
    trained = load_trained(path)
    corpus = load_corpus(trained.config.data)
    model: Any = trained.model.with_lengths(mem_len=6, same_length=False)
    maps = attention_maps(model, OrderedStreams(corpus.splits["valid"], 2, 8))
    with np.load(tmp_path / "attention.npz") as file:
        for name, rows in maps.by_distance.items():
            np.testing.assert_allclose(file[name], rows, rtol=1e-6)
    values = {
        "entropy_bits": maps.entropy, "mean_distance": maps.mean_distance, "in_memory": maps.in_memory,
        "in_segment": 1 - maps.in_memory, "beyond": maps.beyond["all"],
    }  # fmt: skip
    for name, expected in values.items():
        np.testing.assert_allclose([one[name] for one in found["heads"]], expected, rtol=1e-5, atol=1e-9)
    H = model.config.n_head
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [
        (n + 1, h + 1) for n in range(model.config.n_layer) for h in range(H)
    ]
    assert (found["queries"], found["distances"]) == (maps.queries, 7)
    lengths = {"mem_len": 6, "ext_len": 0, "same_length": False, "clamp_len": -1, "segment_len": 8, "batch_size": 2}
    assert found["evaluation"] == lengths
    assert (found["checkpoint"], found["step"], found["encoding"]) == (path, 2, "relative")
    assert found["corpus"] == {"name": "text.txt", "sha256": corpus.checksum}
    farthest = maps.mean_distance.reshape(-1, H).argmax(axis=1)
    assert found["text"]["heads"] == [f"1:{farthest[0] + 1}", f"2:{farthest[1] + 1}"]
    assert found["text"]["position"] == len(corpus.splits["valid"]) // 2
    assert 0 < found["seconds"] < elapsed + 0.01
