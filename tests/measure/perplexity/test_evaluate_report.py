"""Lines, tables and figures of `txl evaluate` from results that are made up: every cell, every point."""

from pathlib import Path
from typing import Any

from tests.measure.kept_figures import Figures, curves
from txl_lightning.measure.perplexity import split_line, write_sweeps


def row(length: int, bpc: float, error: float | None, tokens: int = 1000) -> dict[str, Any]:
    errors = {"nll": None if error is None else error * 0.7, "bpc": error}
    return {"attention_length": length, "nll": bpc * 0.7, "bpc": bpc, "standard_error": errors, "tokens": tokens}


def results() -> dict[str, Any]:
    below = {"nll": 0.07, "bpc": 0.1234, "standard_error": {"nll": 0.001, "bpc": 0.0056}}
    init, best = row(16, 2.5, 0.03), row(40, 2.25, 0.02)
    sweep = {
        "length_option": "mem_len", "limit": 77, "unit": "bpc", "tolerance": 0.0005, "init": init,
        "best": {**best, "below_init": below}, "attention_length": 24,
        "lengths": [row(4, 2.75, None, 900), row(24, 2.3, 0.01), best],
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
| split | bpc at training's lengths | bpc best | difference | attention length |
| --- | ---: | ---: | ---: | --- |
| valid | 2.500 ± 0.030 | 2.250 ± 0.020 | 0.1234 ± 0.0056 | 24 |
| test | 2.700 ± 0.050 | 2.600 ± 0.040 | – | 40 (best on valid) |

The attention length is set by mem_len, at most 77: positions beyond are not trained. Its column has the shortest \
length within 0.0005 bpc of the best. Streams start without context.
±: standard error over blocks of 20 tokens; of differences that of the token-by-token differences.
"""


def test_every_cell_of_the_tables_and_every_point(tmp_path: Path, drawn: Figures) -> None:
    lines = write_sweeps(results(), ["valid", "test"], tmp_path)
    assert "\n".join(lines) + "\n" == (tmp_path / "attention_lengths.md").read_text() == TABLES
    (axes,) = drawn["attention_lengths.svg"].axes
    assert curves(axes) == {"valid": ([4, 16, 24, 40], [2.75, 2.5, 2.3, 2.25])}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("attention length (tokens)", "bits per character")


def test_a_line_for_each_split() -> None:
    assert split_line("valid", results()["valid"], "text", "memory 8") == (
        "valid: nll 1.5000, bpc 2.1640 ± 0.0301, bpb 1.7500 over 5,678 tokens of text (memory 8; left out: "
        "2 at streams' starts, 3,000 after max_segments; ± over 1,234 blocks of 20 tokens)"
    )
