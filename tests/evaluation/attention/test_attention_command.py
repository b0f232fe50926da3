"""txl attention: tiny checkpoints of every kind, what it writes, and what it refuses."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.kept_figures import Figures
from tests.evaluation.small_runs import SmallRuns
from tests.in_process import run_txl
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.attention.command import farthest_heads, run
from txl_lightning.evaluation.attention.options import AttentionOptions

FIGURES = ("by_distance", "text", "terms")


def options(runs: SmallRuns, kind: str, **given: Any) -> AttentionOptions:
    small = {"num_threads": 1, "logger": LoggerConfig(name="none")}
    return AttentionOptions(runs.checkpoint(kind), **{**small, **given})


def written(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.slow
def test_a_memory_of_one_token_has_its_figures(runs: SmallRuns, tmp_path: Path, pictures: None) -> None:
    """With same_length the only key of a query is its own token, which Figure 6 does not show."""
    run(options(runs, "relative", mem_len=1, max_segments=4), tmp_path)
    assert {f"{name}.png" for name in FIGURES} <= written(tmp_path)


def test_figures_table_and_json_of_a_recurrent_transformer(runs: SmallRuns, tmp_path: Path) -> None:
    lines = run(options(runs, "relative", mem_len=12), tmp_path)
    results = json.loads((tmp_path / "attention.json").read_text())
    assert results["distances"] == results["evaluation"]["mem_len"] == 12
    assert results["evaluation"]["same_length"] is True
    assert (results["split"], results["terms"], results["missing_terms"]) == ("valid", "abcd", [])
    maps = np.load(tmp_path / "attention.npz")
    assert sorted(maps) == ["a", "all", "b", "d"]
    for rows in maps.values():
        assert rows.shape == (len(results["heads"]), 12)
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
    for head in results["heads"]:
        assert head["in_segment"] + head["in_memory"] == pytest.approx(1)
        assert 0 < head["entropy_bits"] <= np.log2(12) + 1e-6
        assert 0 < head["mean_distance"] < 11
        assert head["beyond"] == pytest.approx(0, abs=1e-12)
    numbers = [(head["layer"], head["head"]) for head in results["heads"]]
    assert numbers == [(n, h) for n in range(1, numbers[-1][0] + 1) for h in range(1, numbers[-1][1] + 1)]

    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert written(tmp_path) == {
        "attention.json", "attention.npz", "attention.md", "heads.csv", *figures
    }  # fmt: skip
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["entropy_bits"]) for row in rows] == [head["entropy_bits"] for head in results["heads"]]
    table = (tmp_path / "attention.md").read_text()
    assert table.startswith("| layer | head | entropy (bits) | mean distance (tokens) | in the segment (%) |")
    assert len(table.splitlines()) == 2 + len(rows) + 2
    assert f"Average over the {results['queries']:,} tokens of" in lines[-1]
    assert "see all 12 relative positions 0 … −11" in lines[-1]


def test_a_model_without_memory_is_looked_at_within_its_segment(runs: SmallRuns, tmp_path: Path) -> None:
    lines = run(options(runs, "absolute"), tmp_path)
    results = json.loads((tmp_path / "attention.json").read_text())
    assert results["distances"] == results["text"]["targets"] == 4  # half of the segment
    assert {head["in_memory"] for head in results["heads"]} == {0.0}
    assert sorted(np.load(tmp_path / "attention.npz")) == ["a", "all"]
    text = "\n".join(lines)
    assert "Figure 5 leaves out farther tokens" in text
    for term in "bd":
        assert f"Figure 7: the model has no term ({term}) (encoding=absolute, terms='a')" in text


def test_terms_that_are_off_are_named_and_other_lengths_and_splits_are_used(
    runs: SmallRuns, tmp_path: Path, drawn: Figures
) -> None:
    given = {"mem_len": 5, "same_length": False, "split": "test", "segment_len": 6, "batch_size": 3, "max_segments": 4}
    lines = run(options(runs, "shaw", heads=["1:2", "2:1"], text_position=40, **given), tmp_path)
    results = json.loads((tmp_path / "attention.json").read_text())
    assert (results["distances"], results["queries"]) == (6, 3 * (4 * 6 - 5))
    assert results["text"] == {"position": 40, "targets": 6, "heads": ["1:2", "2:1"]}
    assert any("no term (d) (encoding=shaw, terms='ab')" in line for line in lines)
    titles = [axes.get_title(loc="left") for axes in drawn["text.svg"].axes]
    assert titles[:2] == ["layer 1, head 2", "layer 2, head 1"]


def test_thefarthest_heads_are_those_of_the_first_the_middle_and_the_last_layer() -> None:
    distances = np.zeros((16, 10))
    distances[[0, 7, 15, 3], [7, 7, 7, 1]] = 1
    assert farthest_heads(distances) == [(0, 7), (7, 7), (15, 7)]  # one each of first, middle and last layer
    assert farthest_heads(distances[:2]) == [(0, 7), (1, 0)]
    assert farthest_heads(distances[:1]) == [(0, 7)]


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("lstm", {}, r"checkpoint=.*lstm.*: must be of a Transformer-XL; lstm has no attention"),
        ("nothing", {}, "checkpoint=.*nothing.*: no such file"),
        ("relative", {"split": "dev"}, "split=dev: must be one of"),
        ("relative", {"segment_len": 0}, "segment_len=0: must be"),
        ("relative", {"max_segments": 0}, "max_segments=0: must be"),
        ("relative", {"mem_len": -1}, "^mem_len=-1: must be an integer >= 0"),
        ("relative", {"clamp_len": -5}, "clamp_len=-5: must be"),
        ("relative", {"mem_len": 60, "max_segments": 7}, "mem_len=60: must be at most 48: each stream has 48 tokens"),
        ("relative", {"batch_size": 100_000}, "^batch_size=100000"),
        ("relative", {"heads": []}, r"heads=\[\]: must name"),
        ("relative", {"heads": ["1:1", "0:1"]}, "heads=0:1: must be LAYER:HEAD, layers 1 … 2 and heads 1 …"),
        ("relative", {"heads": ["1.1"]}, "heads=1.1: must be LAYER:HEAD"),
        ("relative", {"text_position": 2}, "text_position=2: must be in"),
        ("relative", {"text_tokens": 9}, r"text_tokens=9: must be in 1 … 8 \(segment_len=8\)"),
        ("relative", {"mem_len": 0, "segment_len": 1}, "segment_len=1: must be >= 2 without memory"),
        ("relative", {"accelerator": "tpu"}, "accelerator=tpu: must be cpu or gpu"),
        ("relative", {"logger": LoggerConfig(name="csv")}, "logger=csv: must be wandb or none"),
        ("relative", {"data_path": "/nowhere.txt"}, "^data_path=/nowhere.txt: cannot be read"),
        ("relative", {"split": "train", "batch_size": 1_000}, "^batch_size=1000: gives 1 of"),
    ],
)
def test_impossible_choices_are_named(runs: SmallRuns, tmp_path: Path, kind: str, given: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(options(runs, kind, **given), tmp_path)
    assert "\n" not in str(caught.value)
    assert written(tmp_path) == set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_a_missing_gpu_is_refused(runs: SmallRuns, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="accelerator=gpu: no GPU is visible"):
        run(options(runs, "relative", accelerator="gpu"), tmp_path)


@pytest.mark.slow
def test_the_command_with_wandb_offline(runs: SmallRuns, tmp_path: Path, pictures: None) -> None:
    given = [f"checkpoint={runs.checkpoint('relative')}", "num_threads=1", "heads=[2:1]", "max_segments=5"]
    ended = run_txl("attention", *given, "logger=wandb", f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.status == 0, ended.err
    assert "| layer | head |" in ended.out
    assert ended.out.splitlines()[-1] == str(tmp_path / "run")
    assert (tmp_path / "run/config.yaml").is_file()
    assert json.loads((tmp_path / "run/attention.json").read_text())["text"]["heads"] == ["2:1"]
    (files,) = (tmp_path / "run/wandb").glob("offline-run-*/files/media")
    assert {path.name.rsplit("_", 2)[0] for path in (files / "images/attention").iterdir()} == set(FIGURES)
    assert [path.name.split("_")[0] for path in (files / "table/attention").iterdir()] == ["heads"]


def test_distances_beyond_training_are_clamped(runs: SmallRuns, tmp_path: Path) -> None:
    for given, clamp_len in (({"mem_len": 16}, -1), ({"mem_len": 17}, 15), ({"mem_len": 17, "clamp_len": -1}, -1)):
        run(options(runs, "relative", max_segments=6, **given), tmp_path)
        assert json.loads((tmp_path / "attention.json").read_text())["evaluation"]["clamp_len"] == clamp_len
