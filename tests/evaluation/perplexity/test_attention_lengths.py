"""The sweep of Table 6, column by column, against scores taken one at a time."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.perplexity.scored import result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation.losses import stream_losses
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run
from txl_lightning.runs.trained import load_trained


def direct(runs: SmallRuns, kind: str, segment_len: int, ext_len: int = 0, **lengths: Any) -> float:
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
        lengths = {"mem_len": row["attention_length"], "clamp_len": row["evaluation"]["clamp_len"]}
        expected = direct(runs, "characters", 8, **lengths, same_length=True)
        assert (row["nll"], row["bpc"]) == pytest.approx((expected, expected / math.log(2)), rel=1e-6)
    metrics, init = json.loads((runs.directory("characters") / "metrics.json").read_text()), sweep["init"]
    assert (init["nll"], init["attention_length"]) == pytest.approx((metrics["test/nll"], 16), rel=1e-6)
    rows, best = [*sweep["lengths"], init], sweep["best"]
    lowest = min(rows, key=lambda row: row["nll"])
    assert (best["nll"], best["attention_length"]) == (lowest["nll"], lowest["attention_length"])
    assert best["below_init"]["nll"] == pytest.approx(init["nll"] - best["nll"], abs=1e-12)
    reaching = [row["attention_length"] for row in rows if row["bpc"] <= best["bpc"] + 0.0005]
    assert sweep["attention_length"] == min(reaching)


def test_init_uses_the_lengths_of_training_with_any_evaluation_lengths(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"segment_len": 4, "mem_len": 30, "clamp_len": 5, "same_length": False, "max_segments": 6}
    ours = result(runs, "characters", tmp_path, attention_lengths=[10], **options)["test"]
    init, (row,) = ours["sweep"]["init"], ours["sweep"]["lengths"]
    lengths = {"segment_len": 8, "mem_len": 8, "ext_len": 0, "same_length": False, "clamp_len": -1, "max_segments": 3}
    assert init["evaluation"].items() >= lengths.items()
    assert init["tokens"] == row["tokens"] == ours["tokens"]
    assert row["evaluation"]["same_length"] is False


def test_without_recurrence_a_longer_attention_is_a_longer_window(runs: SmallRuns, tmp_path: Path) -> None:
    sweep = result(runs, "shaw_words", tmp_path, attention_lengths=[12])["test"]["sweep"]
    assert (sweep["length_option"], sweep["unit"]) == ("ext_len", "ppl")
    expected = direct(runs, "shaw_words", 3, 9, mem_len=0)
    assert sweep["lengths"][0]["ppl"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert sweep["init"]["nll"] == pytest.approx(direct(runs, "shaw_words", 2, 6, mem_len=0), rel=1e-6)
    assert sweep["init"]["attention_length"] == 8
    assert sweep["init"]["evaluation"]["protocol"] == "window"


def test_absolute_positions_use_extended_context_as_far_as_they_go(runs: SmallRuns, tmp_path: Path) -> None:
    given = {"segment_len": 6, "ext_len": 0, "attention_lengths": [3, 9, 10, 50, 500]}
    sweep = result(runs, "extended", tmp_path, **given)["test"]["sweep"]
    assert (sweep["length_option"], sweep["limit"]) == ("ext_len", 10)
    assert [row["attention_length"] for row in sweep["lengths"]] == [3, 9, 10]
    for row, (segment_len, ext_len) in zip(sweep["lengths"], [(1, 2), (2, 7), (2, 8)], strict=True):
        assert row["nll"] == pytest.approx(direct(runs, "extended", segment_len, ext_len, mem_len=0), rel=1e-6)
    assert sweep["init"]["attention_length"] == 10
    assert sweep["init"]["nll"] == pytest.approx(direct(runs, "extended", 2, 8, mem_len=0), rel=1e-6)


def test_the_window_is_what_slides(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"protocol": "window", "stride": 2}
    ours = result(runs, "lstm", tmp_path, attention_lengths=[4, 6], **options)["test"]["sweep"]
    assert (ours["length_option"], ours["init"]["attention_length"]) == ("window", 8)
    for row in ours["lengths"]:
        alone = result(runs, "lstm", tmp_path, window=row["attention_length"], **options)["test"]
        assert row["nll"] == pytest.approx(alone["nll"], rel=1e-6)


def test_table_and_figures_are_written(runs: SmallRuns, tmp_path: Path, pictures: None) -> None:
    lines = run(EvaluateOptions(runs.checkpoint("characters"), attention_lengths=[4, 8], num_threads=1), tmp_path)
    assert [line.split(" ")[0] for line in lines[:2]] == ["valid:", "test:"]
    assert (tmp_path / "attention_lengths.md").read_text() == "\n".join(lines[2:]) + "\n"
    assert (tmp_path / "attention_lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "attention_lengths.svg").read_text()
