"""Lines, tables and figures of `txl evaluate` from results that are made up: every cell, every point."""

from pathlib import Path
from typing import Any

import pytest

from tests.measure.kept_figures import Figures, bands, curves
from tests.measure.logged_panels import logged_panels
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.measure.perplexity import EvaluateOptions
from txl_lightning.measure.perplexity.attention_lengths import write_sweeps
from txl_lightning.measure.perplexity.command import log_results, split_line


def row(length: int, bpc: float, error: float | None, tokens: int = 1000, **evaluation: Any) -> dict[str, Any]:
    errors = {"nll": None if error is None else error * 0.7, "bpc": error}
    lengths = {"segment_len": 8, "mem_len": length, "ext_len": 0, "clamp_len": -1, **evaluation}
    return {
        "attention_length": length, "nll": bpc * 0.7, "bpc": bpc, "standard_error": errors, "tokens": tokens,
        "evaluation": lengths,
    }  # fmt: skip


def results() -> dict[str, Any]:
    below = {"nll": 0.07, "bpc": 0.1234, "standard_error": {"nll": 0.001, "bpc": 0.0056}}
    init, best = row(16, 2.5, 0.03), row(40, 2.25, 0.02, clamp_len=15)
    sweep = {
        "knob": "mem_len", "same_length": True, "limit": 77, "unit": "bpc", "tolerance": 0.0005, "init": init,
        "best": {**best, "below_init": below}, "attention_length": 24,
        "lengths": [row(4, 2.75, None, 900), row(24, 2.3, 0.01), best], "unclamped": [row(40, 2.9, 0.04)],
    }  # fmt: skip
    error = {"nll": 0.02, "bpc": 0.0301, "over": "blocks of 20 tokens", "units": 1234}
    left_out = {"first_of_streams": 2, "trimmed": 0, "max_segments": 3000}
    split = {
        "nll": 1.5, "bpc": 2.1640, "bpb": 1.75, "standard_error": error, "tokens": 5678, "bytes": 9999,
        "left_out": left_out, "seconds": 1.0,
    }  # fmt: skip
    selected = {
        "chosen_on": "valid", "attention_length": 40, "init": row(16, 2.7, 0.05), "best": row(40, 2.6, 0.04),
        "below_init": None,
    }  # fmt: skip
    return {
        "corpus": {"name": "text", "level": "char"}, "streams_start": "without context", "evaluation": {},
        "valid": {**split, "sweep": sweep}, "test": {**split, "nll": 1.25, "tokens": 4321, "selected": selected},
    }  # fmt: skip


TABLES = """\
| split | bpc init | bpc best | best below init | attention length |
| --- | ---: | ---: | ---: | --- |
| valid | 2.500 ± 0.030 | 2.250 ± 0.020 | 0.1234 ± 0.0056 | 24 |
| test | 2.700 ± 0.050 | 2.600 ± 0.040 | – | 40 (best on valid) |

| attention length | bpc, valid | tokens |
| --- | ---: | ---: |
| 4 | 2.750 | 900 |
| 24 | 2.300 ± 0.010 | 1,000 |
| 40 | 2.250 ± 0.020 | 1,000 |
| 40, no clamp | 2.900 ± 0.040 | 1,000 |

The attention length is set by mem_len, with same_length=true.
Init: lengths of training (segment_len 8, mem_len 16, ext_len 0). Attention length: the shortest at most 0.0005 bpc \
above the best. Streams start without context.
Longer distances than in training have the position of distance 15 (clamp_len).
The model has 77 trained positions and cannot use longer attention.
±: standard error over blocks of 20 tokens; for differences, of the token-by-token differences.
"""


def test_every_cell_of_the_tables_and_every_curve(tmp_path: Path, drawn: Figures) -> None:
    lines = write_sweeps(results(), ["valid", "test"], tmp_path)
    assert "\n".join(lines) + "\n" == TABLES
    assert (tmp_path / "attention_lengths.md").read_text() == TABLES
    assert set(drawn) == {"attention_lengths_valid.png", "attention_lengths_valid.svg"}
    (axes,) = drawn["attention_lengths_valid.svg"].axes
    assert curves(axes) == {
        "by attention length": ([4, 24, 40], [2.75, 2.3, 2.25]),
        "without clamp": ([40], [2.9]),
        "init, lengths of training (16)": ([16], [2.5]),
        "best, reached at 24": ([0, 1], [2.25, 2.25]),
    }
    (low, high), *_ = bands(axes)
    assert (low, high) == (pytest.approx([2.75, 2.29, 2.23]), pytest.approx([2.75, 2.31, 2.27]))
    reached = [list(line.get_xdata()) for line in axes.get_lines() if str(line.get_label()).startswith("_child")]
    assert reached == [[24, 24]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("attention length (tokens)", "bits per character, text, valid")


def test_a_line_for_each_split() -> None:
    assert split_line("valid", results()["valid"], "text", "memory 8") == (
        "valid: nll 1.5000, bpc 2.1640 ± 0.0301, bpb 1.7500 over 5,678 tokens of text (memory 8; left out: "
        "2 at streams' starts, 3,000 after max_segments; ± over 1,234 blocks of 20 tokens)"
    )


def test_panels_are_those_of_tables_and_figures(tmp_path: Path) -> None:
    with logged_panels() as panels:
        options = EvaluateOptions("path", splits=["valid", "test"], logger=LoggerConfig(name="wandb"))
        log_results(results(), options, tmp_path)
    header, rows = panels["evaluate/table"]
    assert header == ["split", "nll", "bpc", "bpc standard error", "tokens"]
    assert rows == [["valid", 1.5, 2.1640, 0.0301, 5678], ["test", 1.25, 2.1640, 0.0301, 4321]]
    assert panels["summary"] == {
        "valid/nll": 1.5, "valid/bpc": 2.1640, "valid/bpb": 1.75, "valid/tokens": 5678,
        "test/nll": 1.25, "test/bpc": 2.1640, "test/bpb": 1.75, "test/tokens": 4321,
    }  # fmt: skip
    assert panels["evaluate/table_6"][1][0][1] == "2.500 ± 0.030"
    lengths, series, *_ = panels["evaluate/attention_lengths"]
    assert (lengths, series) == ([4, 24, 40], {"valid": [2.75, 2.3, 2.25]})
    assert panels["config"]["splits"] == ["valid", "test"]


def test_dynamic_scores_are_in_the_summary(tmp_path: Path) -> None:
    learned = {"nll": 1.25, "bpc": 1.8034, "bpb": 1.5, "tokens": 5678}
    found = {**results(), "valid": {**results()["valid"], "dynamic": learned}}
    with logged_panels() as panels:
        log_results(
            found, EvaluateOptions("path", splits=["valid", "test"], logger=LoggerConfig(name="wandb")), tmp_path
        )
    logged = {name: value for name, value in panels["summary"].items() if "/dynamic/" in name}
    assert logged == {f"valid/dynamic/{name}": value for name, value in learned.items()}
