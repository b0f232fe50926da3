"""Workloads of the bench at tiny size, the work that their cases need, and whole commands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import commands, worker
from benchmarks.cases import TINY, Limits
from benchmarks.commands import KEPT, OTHER, checkpoint_cost, kind_of, step_profiles, validation_cost
from benchmarks.worker import make_workload, our_model, random_tokens
from tests.training.small_run import TINY as TINY_RUN
from tests.training.small_run import tiny_config


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["training", "evaluation"])
def test_our_workloads_run_and_carry_their_memory(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, memories = worker.FORWARD[name]["ours"], []

    def forward(model: Any, tokens: torch.Tensor, memory: Any) -> Any:
        memories.append(memory)
        return original(model, tokens, memory)

    monkeypatch.setitem(worker.FORWARD[name], "ours", forward)
    running = make_workload(name, "ours", replace(TINY, precision=precision))
    memories.clear()
    assert running.run(2) > 0
    assert running.run(1) > 0
    assert [memory is None for memory in memories] == [True, False, False]
    assert running.describe()["parameters"] == sum(parameter.numel() for parameter in our_model(TINY).parameters())


def test_the_memory_of_a_workload_is_that_above_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"VmRSS": 100}
    monkeypatch.setattr(worker, "resident_bytes", lambda name: now[name])
    running = make_workload("training", "ours", TINY)
    now["VmHWM"] = 350
    assert running.peak_bytes() == 250


def test_generation_the_loader_and_the_limits_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worker.LIMITS, "cpu", Limits(16, 3, 1000, 5))
    for name in ("ours", "loader", "matrix", "bandwidth"):
        assert make_workload("generation", name, replace(TINY, segment=1 if name == "ours" else 16)).run(3) > 0
    half = replace(TINY, precision="bf16")
    assert make_workload("training", "matrix", half).describe()["work"] == 3 * 2 * 16**3
    assert make_workload("training", "bandwidth", half).describe()["work"] == 5 * 2 * 1000


def test_the_needed_operations_are_those_of_every_product() -> None:
    """Counted product by product: forward, gradient of the weights, gradient of the inputs that depend on weights."""
    case = replace(TINY, batch_size=3, segment=4, memory=5, d_model=16, n_head=2, d_inner=24, n_layer=3, vocab_size=50)
    multiplied = 0
    for _layer in range(case.n_layer):
        for stream in range(case.batch_size):
            for key in range(case.memory + case.segment):
                times = 3 if key >= case.memory else 2  # nothing is trained through the memory
                multiplied += times * 2 * 16 * 16  # its key and value
                multiplied += 2 * 16 * 16 * (stream == 0)  # that of its distance, once for all streams
            for query in range(case.segment):
                multiplied += 3 * (16 * 16 + 16 * 16 + 16 * 24 + 24 * 16)  # query, output, feed-forward
                multiplied += 3 * sum(3 * 16 for key in range(case.memory + case.segment) if key <= query + case.memory)
    multiplied += 3 * case.batch_size * case.segment * 16 * 50  # the softmax
    assert case.training_flops == 2 * multiplied
    running = make_workload("training", "ours", replace(TINY, memory=112, d_model=64))
    running.run(1)
    with FlopCounterMode(display=False) as counter:
        running.run(1)
    assert 1 <= counter.get_total_flops() / running.case.training_flops <= 1.35  # it also computes masked pairs


def test_the_weights_of_the_layers_are_those_of_the_model() -> None:
    matrices = [parameter for parameter in our_model(TINY).layers.parameters() if parameter.dim() == 2]
    assert TINY.layer_weights == sum(matrix.numel() for matrix in matrices)
    used = sum(m.numel() for m in matrices) - TINY.n_layer * 32 * 32 + 256 * 32  # not the distances', but the softmax
    cached = 2 * TINY.n_layer * TINY.batch_size * (TINY.memory + TINY.segment) * 32
    assert [TINY.step_bytes(size) for size in (2, 4)] == [2 * (used + cached), 4 * (used + cached)]


def test_the_width_of_an_adaptive_softmax_is_that_of_the_drawn_tokens() -> None:
    torch.manual_seed(0)
    case = replace(TINY, vocab_size=2000, cutoffs=(100, 500))
    tokens = random_tokens(case, 100_000)
    assert 0 <= tokens.min() < tokens.max() < 2000
    tails = 400 * ((tokens >= 100) & (tokens < 500)) + 1500 * (tokens >= 500)
    assert case.softmax_width == pytest.approx(102 + tails.double().mean().item(), rel=0.01)
    assert TINY.softmax_width == 256


@pytest.mark.slow
def test_whole_commands_are_timed_and_a_failure_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_config(tmp_path)  # writes the text
    monkeypatch.setattr(commands, "MODEL", (*TINY_RUN, f"data.path={tmp_path}/text.txt"))
    monkeypatch.setattr(commands, "FIRST_STEP", ("trainer.max_steps=1", "trainer.progress_file=true"))
    grid = ("first_context=4", "step=4", "max_context=8", "n_positions=5", "num_threads=1", "logger=none")
    monkeypatch.setattr(commands, "GRID", grid)
    started = commands.startup(tmp_path, 1)
    assert 0 < started["help"][0] < started["first_step"][0]
    assert commands.recl(tmp_path, 1)["seconds"][0] > 0
    sizes = {"first": 4, "last": 16, "positions": 60, "threads": 1, "tenth": 5}
    monkeypatch.setattr(commands, "LOSSES", sizes)
    measured = commands.recl_losses(tmp_path, 1)
    assert measured["positions"] == 60
    assert list(measured["seconds"]) == ["one pass float32", "one pass bf16", "direct float32"]
    assert all(seconds[0] > 0 for seconds in measured["seconds"].values())
    with pytest.raises(SystemExit, match="nonsense"):
        commands.run(*commands.TXL, "nonsense", directory=tmp_path)
    monkeypatch.setattr(commands, "CORPORA", (("python-stdlib", "byte"), ("wikipedia-2015", "byte")))
    monkeypatch.delenv("TXL_DATA", raising=False)
    ((name, prepared),) = commands.preparation(tmp_path, 1)["corpora"].items()
    assert name == "python-stdlib, byte"
    assert all(prepared[name][0] > 0 for name in ("first", "cached"))  # which is shorter depends on what else runs
    assert prepared["first_peak"][0] > 1 << 20


def test_a_step_is_divided_into_kinds_of_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PASSES", 1)
    found = step_profiles(tmp_path, 1, {"tiny": 1})["shares"]
    assert list(found) == ["tiny, float32", "tiny, bf16"]
    for shares in found.values():
        assert shares.pop(KEPT) > 0  # timed apart from the step, so that it may be more than a tiny step
        assert sum(shares.values()) == pytest.approx(1.0)
        assert min(shares[kind] for kind in ("products", "softmax", "random numbers", "clipping, Adam")) > 0
    assert (kind_of("aten::add_"), kind_of("_SoftmaxBackward")) == ("element-wise, norms, sums", OTHER)


@pytest.mark.slow
def test_the_costs_of_checkpoints_and_validation_are_measured_in_turns(tmp_path: Path) -> None:
    tiny_config(tmp_path)  # writes the text
    data = ("data=file", f"data.path={tmp_path}/text.txt", f"data.cache_dir={tmp_path}/cache", "trainer.num_threads=1")
    sizes = ("model=txl_smoke", "data.batch_size=4", "data.segment_len=8", "evaluation.batch_size=2")
    measured = checkpoint_cost(tmp_path, 2, *data, *sizes, every=2, steps=4)
    assert len(measured["with"]) == len(measured["without"]) == 2
    assert measured["bytes"] > 1000
    validated = validation_cost(tmp_path / "validated", 1, *data, *sizes, "memory.segments=1", every=2, steps=4)
    assert len(validated["with"]) == len(validated["without"]) == 1
    for name, validations in (("with", 2), ("without", 1)):  # every run validates its last step
        assert len((tmp_path / f"validated/{name}-0/validation.jsonl").read_text().splitlines()) == validations


def test_untimed_steps_come_first_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, ...]] = []
    case = replace(TINY, untimed=2)
    timed = worker.warm_segments(case, lambda tokens: steps.append(tuple(tokens.shape)), 3)
    assert steps == [(TINY.batch_size, TINY.segment + 1)] * 2
    timed()
    assert len(steps) == 2 + 3
