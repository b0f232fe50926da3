"""The bench: workers that take turns, and the table of their seconds."""

import sys
from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.bench import CASES, command_turns, measure, table, turns_of


def test_ratios_are_of_the_same_round_and_precision() -> None:
    """A turn of `small` is 5 steps of 16 × 64 tokens: 5,120 tokens."""
    seconds = {"ours, float32": [1.0, 2.0, 4.0], "ours, bf16": [1.0, 1.0, 1.0]}
    seconds |= {"huggingface, float32": [3.0, 4.0, 20.0], "huggingface, bf16": [2.0, 2.5, 3.0]}
    assert table({"small": seconds}).splitlines()[2:] == [
        "| small | ours, float32 | 2,560 |  |",
        "| small | ours, bf16 | 5,120 |  |",
        "| small | huggingface, float32 | 1,280 | 3.000 (2.000–5.000) |",
        "| small | huggingface, bf16 | 2,048 | 2.500 (2.000–3.000) |",
    ]


@pytest.mark.slow
def test_turns_are_timed() -> None:
    """Each turn of a command trains in a new folder: `txl train` refuses one with a finished run."""
    assert turns_of("ours", CASES["tiny"])() > 0
    assert command_turns(CASES["first-step"])() > 0


@pytest.mark.full
def test_workers_of_two_checkouts_take_turns_and_leave_out_the_first_round() -> None:
    root = Path(bench.__file__).parents[1]
    found = measure(
        CASES["tiny"],
        {"ours": ("ours", None), "against": ("ours", root)},
        rounds=2,
    )
    assert list(found) == ["ours, float32", "ours, bf16", "against, float32", "against, bf16"]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())


@pytest.mark.slow
def test_a_worker_that_fails_ends_the_bench(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "OTHERS", Path(sys.executable))
    with pytest.raises(SystemExit, match="original"):
        measure(CASES["tiny"], {"original": ("original", tmp_path)}, rounds=1)
