"""The bench: workers that take turns, and the table of their seconds."""

import sys
from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.bench import CASES, measure, table


def test_ratios_are_of_the_same_round_and_precision() -> None:
    """A turn of `small` is 5 steps of 16 × 64 tokens: 5,120 tokens."""
    seconds = {
        "ours, float32": [1.0, 2.0, 4.0],
        "ours, bf16": [1.0, 1.0, 1.0],
        "huggingface, float32": [3.0, 4.0, 20.0],
        "huggingface, bf16": [2.0, 2.5, 3.0],
    }
    rows = table({"small": seconds}).splitlines()[2:]
    assert rows == [
        "| small | ours, float32 | 2,560 |  |",
        "| small | ours, bf16 | 5,120 |  |",
        "| small | huggingface, float32 | 1,280 | 3.000 (2.000–5.000) |",
        "| small | huggingface, bf16 | 2,048 | 2.500 (2.000–3.000) |",
    ]


def test_workers_of_two_checkouts_take_turns_and_leave_out_the_first_round() -> None:
    root = Path(bench.__file__).parents[1]
    found = measure(CASES["tiny"], {"ours": ("ours", None), "against": ("ours", root)}, rounds=2)
    assert list(found) == ["ours, float32", "ours, bf16", "against, float32", "against, bf16"]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())


@pytest.mark.parametrize("name", ["evaluation", "words"])
def test_evaluation_and_an_adaptive_softmax_carry_their_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"n_layer": 1, "d_model": 16, "n_head": 2, "segment": 4, "memory": 8, "batch_size": 2, "steps": 2}
    case = bench.replace(CASES[name], **small, vocab_size=50, cutoffs=(10,) if CASES[name].cutoffs else ())
    memories = []
    model, step = bench.ours(case)

    def recorded(tokens: bench.Tensor, memory: object) -> object:
        memories.append(memory)
        return step(tokens, memory)

    monkeypatch.setitem(bench.IMPLEMENTATIONS, "ours", lambda case: (model, recorded))
    turn = bench.turns_of("ours", case)
    assert turn() > 0
    assert [memory is None for memory in memories] == [True, False, False]  # an untimed step before two timed ones


def test_a_worker_that_fails_ends_the_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "OTHERS", Path(sys.executable))
    with pytest.raises(SystemExit, match="original"):
        measure(CASES["tiny"], {"ours": ("ours", None), "original": ("original", tmp_path)}, rounds=1)
