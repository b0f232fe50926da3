"""Tables and figures of `txl recl` from results that are made up: every cell, every point."""

from pathlib import Path
from typing import Any

import pytest

from tests.measure.kept_figures import Figures, bands, curves
from txl_lightning.measure.recl_report import line_series, write_report


def length(value: int, low: int, high: int, start: float, **others: Any) -> dict[str, Any]:
    gains = {"perplexity_gains": [start, start / 2], "perplexities": [90.0, 80.0], "relative_gains": [0.5, 0.4]}
    found = {"value": value, "at_least": False, "guarded": value - 10, "guarded_at_least": False}
    return {**found, "low": low, "high": high, "high_at_least": False, **gains, **others}


def model(name: str, group: str, first: float, **others: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": f"kind of {name}", "group": group, "checkpoint": f"/runs/{name}/best.ckpt",
        "tokens_trained": None, "limit": None, "begin_of_text": None, "scoring": "one pass", "trained_len": None,
        "bpc": [first, first - 0.1, first - 0.3], "bpc_standard_error": [0.01, 0.02, 0.03],
        "doublings": [{"from": 10, "to": 20, "bits": 0.1, "standard_error": 0.004}], "within_1_percent": 30,
        "key_tokens": {"share": 0.031, "share_of_rises": 0.002},
        "recl": {"0.1": length(20, 10, 30, 4.0), "1.0": length(10, 10, 20, 2.0)},
        **others,
    }  # fmt: skip


def results() -> dict[str, Any]:
    a = model("a", "x", 2.0, trained_len=3, limit=25)
    b = model("b", "x", 3.0, scoring="direct", begin_of_text=0)
    b["recl"]["0.1"] = length(30, 20, 30, 6.0, at_least=True, high_at_least=True, guarded_at_least=True)
    c = model("c", "y", 4.0)
    c["key_tokens"] = {"share": 0.0, "share_of_rises": 0.0}
    c["recl"] = {r: found | {"guarded": found["value"]} for r, found in c["recl"].items()}
    groups = [{"name": "x", "models": ["a", "b"]}, {"name": "y", "models": ["c"]}]
    difference = {"model": "a", "minus": "b", "nll": [-0.5, -0.6, -0.7], "low": [-0.9] * 3, "high": [-0.1, -0.1, 0.2]}
    difference |= {"nll_standard_error": [0.1, 0.2, 0.3]}
    others = [difference | {"minus": "c", "nll": [-1.0, -1.1, -1.2]}, difference | {"model": "b", "minus": "c"}]
    return {
        "unit": "bpc", "contexts": [10, 20, 30], "context_unit": "token", "fractions": [0.1, 1.0], "step": 10,
        "threshold": 0.01, "bootstrap": 1000, "split": "test", "precision": "bf16-mixed", "models": [a, b, c],
        "positions": {"number": 1234, "blocks": 40, "cut": 0}, "corpus": {"name": "text", "level": "char"},
        "groups": groups, "differences": [difference, *others], "key_contexts": [10, 30], "key_gain": 2.0,
    }  # fmt: skip


TABLE = """\
Loss by context and its gain, without a group:

| model | kind | sees at most | bpc at 10 tokens | bpc at 30 tokens | bits 10 → 20 | within 1 % |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
| a | kind of a | 25 | 2.000 ± 0.010 | 1.700 ± 0.030 | 0.100 ± 0.004 | 30 |
| b | kind of b | – | 3.000 ± 0.010 | 2.700 ± 0.030 | 0.100 ± 0.004 | 30 |
| c | kind of c | – | 4.000 ± 0.010 | 3.700 ± 0.030 | 0.100 ± 0.004 | 30 |

RECL in the group of: a, b; c

| model | group | RECL r = 0.1 | RECL r = 1.0 | guarded r = 0.1 | guarded r = 1.0 |
| --- | --- | --- | --- | --- | ---: |
| a | x | 20 [10, 30] | 10 [10, 20] | 10 | 0 |
| b | x | ≥ 30 [20, ≥ 30] | 10 [10, 20] | ≥ 20 | 0 |
| c | y | 20 [10, 30] | 10 [10, 20] | 20 | 10 |
"""
NOTES = """\
1,234 positions of text (test) in 40 blocks spread evenly over the text; ± over blocks. A step from a context of the \
grid to the next counts if its relative gain is at least 0.01.
Within 1 %: the first context whose loss is at most 1 % above that at 30 tokens. Sees at most: the positions that a \
model has or was trained with.
In brackets: 95 % interval over 1,000 resamples of the blocks. ≥: steps still counted at 30 tokens, where the grid \
ends (max_context).
Guarded: a step must also lower the model's own mean loss, over all and over hard positions.
Key tokens, whose loss falls (rises) by more than 2 nats from 10 to 30 tokens: a 3.1% (0.2%), b 3.1% (0.2%), c 0.0% \
(0.0%).
"""
DIFFERENCES = """\
| difference, paired by position | nats at 30 tokens, 95 % interval |
| --- | --- |
| a − b | -0.7000 [-0.9000, +0.2000] |
| a − c | -1.2000 [-0.9000, +0.2000] |
| b − c | -0.7000 [-0.9000, +0.2000] |
"""


def test_every_cell_of_the_tables(tmp_path: Path) -> None:
    lines = write_report(results(), tmp_path)
    assert "\n".join(lines) + "\n" == (tmp_path / "recl.md").read_text() == f"{TABLE}\n{DIFFERENCES}\n{NOTES}"


def test_in_bytes_and_without_intervals(tmp_path: Path) -> None:
    found = results() | {"context_unit": "byte", "bootstrap": 0}
    text = "\n".join(write_report(found, tmp_path))
    assert "| a | kind of a | 25 tokens | 2.000 ± 0.010 |" in text
    assert "| a | x | 20 | 10 | 10 | 0 |" in text
    assert "bpc at 30 bytes" in text
    assert "In brackets" not in text


def test_of_a_long_grid_the_last_doublings_from_the_first_context_are_shown(tmp_path: Path) -> None:
    found = results() | {"contexts": [8, 16, 24, 32, 48, 64, 96, 128], "key_contexts": [8, 128]}
    pairs = [(8, 16), (16, 32), (24, 48), (32, 64), (48, 96), (64, 128)]
    more = {"doublings": [{"from": a, "to": b, "bits": a / 100, "standard_error": 0.01} for a, b in pairs]}
    more |= {"bpc": [2.0] * 8, "bpc_standard_error": [0.1] * 8, "key_tokens": None}
    long = {"perplexities": [9.0] * 7, "perplexity_gains": [1.0] * 7}
    a = found["models"][0]
    a |= more | {"recl": {r: of_r | long for r, of_r in a["recl"].items()}}
    groups = {"groups": [{"name": "x", "models": ["a"]}], "differences": []}
    lines = write_report(found | groups | {"models": [a]}, tmp_path)
    assert "| bits 16 → 32 | bits 32 → 64 | bits 64 → 128 | within 1 %" in lines[2]
    assert "| 0.160 ± 0.010 | 0.320 ± 0.010 | 0.640 ± 0.010 | 30 |" in lines[4]
    assert "Key tokens" not in "\n".join(lines)


def test_curves_of_gains_losses_and_differences(tmp_path: Path, drawn: Figures) -> None:
    """A difference is positive where the other model is worse than the first."""
    write_report(results(), tmp_path)
    needed = ([0, 1], [0.9, 0.8])  # the threshold's hundredth of 90 and 80
    expected = {"a": ([0, 1], [4, 2]), "b": ([0, 1], [6, 3]), "needed for a longer RECL": needed}
    assert curves(drawn["gains_x_r0.1.svg"].axes[0]) == expected
    assert curves(drawn["contexts.svg"].axes[0])["b"] == ([10, 20, 30], pytest.approx([3, 2.9, 2.7]))
    (axes,) = drawn["differences.svg"].axes
    assert curves(axes)["b"] == ([10, 20, 30], [0.5, 0.6, 0.7])
    assert bands(axes)[0] == (pytest.approx([0.4, 0.4, 0.4]), pytest.approx([0.6, 0.8, 1.0]))


def test_curves_for_weights_and_biases_are_those_of_the_figures() -> None:
    series = line_series(results())
    c, gains, *_ = series["gains_x_r1.0"]
    assert (c, gains["a"], gains["needed for a longer RECL"]) == ([10, 20], [2, 1], [0.9, 0.8])
    c, losses, *_ = series["bpc"]
    assert (c, losses["b"]) == ([10, 20, 30], [3, 2.9, 2.7])
