"""Triton's kernels against eager attention: outputs and all gradients, in the interpreter or on a GPU."""

import itertools
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.model.kernels.attention_problem import DEVICE, Problem, assert_close_to_eager, assert_equals_eager
from tests.model.tiny_model import random_stream, score_segments, tiny_model
from txl_lightning.errors import OptionError
from txl_lightning.model.attention import content_scores, position_scores
from txl_lightning.model.kernels.choice import attend_fused

pytest.importorskip("triton", reason="triton is not installed")
triton_attention = import_module("txl_lightning.model.kernels.triton_attention")
triton_kernels = import_module("txl_lightning.model.kernels.triton_kernels")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy in the interpreter: -inf - 0, wrapping of hashes
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[3]
SUBSETS = ["".join(terms) for n in range(5) for terms in itertools.combinations("abcd", n)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "BLOCK_BYTES", 1)  # 16 rows, so that small problems have several blocks


@pytest.mark.parametrize(
    ("terms", "encoding"),
    [*((terms, "relative") for terms in SUBSETS), *((s, "shaw") for s in ("abcd", "abd", "cd", "d"))],
)
def test_every_subset_of_the_terms(terms: str, encoding: str) -> None:
    assert_equals_eager(Problem(T=18, M=7, filled=4, H=1, terms=terms, encoding=encoding), "triton")


@pytest.mark.parametrize(
    "problem",
    [
        Problem(T=1, M=0, filled=0),
        Problem(T=1, M=40, filled=40),
        Problem(T=33, M=0, filled=0),
        Problem(T=16, M=16, filled=16, E=16),
        Problem(T=5, M=50, filled=0),
        Problem(T=7, M=60, filled=17, clamp_len=9),
        Problem(T=40, M=24, filled=24, attention_len=24),
        Problem(T=40, M=24, filled=3, attention_len=9),
        Problem(T=20, M=20, filled=20, attention_len=1),
        Problem(T=20, M=3, filled=3, attention_len=1000, B=1, H=3, E=41),
        Problem(encoding="alibi"),
        Problem(encoding="rope", E=6, qk_norm=True),
    ],
    ids=str,
)
def test_lengths(problem: Problem) -> None:
    assert_equals_eager(problem, "triton")


@pytest.mark.parametrize("problem", [Problem(), Problem(T=33, M=20, attention_len=11, E=41)], ids=str)
def test_in_float16(problem: Problem) -> None:
    assert_close_to_eager(problem, "triton", torch.float16, 0.01)


@pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter multiplies the bits of bfloat16 as integers")
@pytest.mark.parametrize("problem", [Problem(), Problem(T=33, M=20, attention_len=11, E=41)], ids=str)
def test_in_bfloat16(problem: Problem) -> None:
    assert_close_to_eager(problem, "triton", torch.bfloat16, 0.04)


def fused_inputs(values_HBKE: Tensor | None = None) -> tuple[Problem, Tensor, Tensor, Tensor]:
    problem = Problem(T=18, M=6, filled=4, E=24)
    generator = torch.Generator().manual_seed(1)
    H, B, T, K, E = problem.H, problem.B, problem.T, problem.M + problem.T, problem.E
    query, kv, by_distance = (
        torch.randn(shape, generator=generator).to(DEVICE)
        for shape in ((H, B, T, E), (2, H, B, K, E), (H, B * T, K + 1))
    )
    if values_HBKE is not None:
        kv[1] = values_HBKE
    return problem, query, kv, by_distance


def probabilities_of(problem: Problem, query: Tensor, kv: Tensor, by_distance: Tensor) -> Tensor:
    mask = problem.visible(query).mask_TK.expand(problem.H * problem.B, -1, -1)
    scores = content_scores(query, kv[0], mask) + position_scores(by_distance, problem.T)
    return scores.softmax(-1).unflatten(0, (problem.H, problem.B))


def test_dropout_has_one_mask_in_forward_and_backward() -> None:
    p = 0.3
    # With the unit vectors as values the output is the probabilities after dropout.
    problem, query, kv, by_distance = fused_inputs(torch.eye(24, device=DEVICE))
    visible = problem.visible(query)
    torch.manual_seed(3)
    dropped = attend_fused("triton", query, kv, by_distance, visible, p)
    other = attend_fused("triton", query, kv, by_distance, visible, p)
    probabilities = probabilities_of(problem, query, kv, by_distance)
    seen = (visible.mask_TK == 0).expand_as(probabilities)
    factors = torch.where(seen, dropped / probabilities, 0.0)
    kept = factors > 0
    torch.testing.assert_close(factors, kept / (1 - p), rtol=1e-4, atol=1e-5)
    assert abs(kept.sum() / seen.sum() - (1 - p)) < 0.06
    assert not torch.equal(other, dropped)
    masks = kept.flatten(0, 1)
    assert all(not torch.equal(masks[0], mask) for mask in masks[1:])

    problem, *inputs = fused_inputs()
    inputs = [x.requires_grad_() for x in inputs]
    torch.manual_seed(3)
    fused = attend_fused("triton", *inputs, visible, p)
    reference = probabilities_of(problem, *inputs) * (kept / (1 - p)) @ inputs[1][1]
    torch.testing.assert_close(fused, reference, rtol=1e-4, atol=2e-5)
    cotangent = torch.randn_like(reference)
    for ours, theirs in zip(*(torch.autograd.grad(y, inputs, cotangent) for y in (fused, reference)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_without_dropout_no_random_number_is_drawn() -> None:
    problem, *inputs = fused_inputs()
    state = torch.get_rng_state()
    attend_fused("triton", *inputs, problem.visible(inputs[0]), 0.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_probabilities_are_stored() -> None:
    problem, *inputs = fused_inputs()
    query, kv, by_distance = inputs
    inputs = [x.requires_grad_() for x in (query[..., :20].clone(), kv[..., :20].clone(), by_distance)]
    saved: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
        attend_fused("triton", *inputs, problem.visible(inputs[0]), 0.1)
    H, B, T, K = problem.H, problem.B, problem.T, problem.M + problem.T
    assert (H, B, T) in saved
    assert (H, B, T, K + 1) in saved  # the scores by distance, which are an input
    assert (H, B, T, K) not in saved


def test_lengths_are_values_of_one_compiled_kernel() -> None:
    query, kv = torch.zeros(2, 2, 9, 5), torch.zeros(2, 2, 2, 30, 5)
    by_distance, seed = torch.zeros(2, 2, 9, 31), torch.zeros(1, dtype=torch.int64)
    calls = [
        triton_attention._Call(query, kv[:, :, :, :K], by_distance[..., : K + 1], seed, lengths, 0.1)
        for K, lengths in ((30, (9, 0, 31)), (17, (9, 3, 8)), (9, (9, 0, 10)))
    ]
    assert calls[0].flags == calls[1].flags == calls[2].flags
    for kernel in ("forward_kernel", "backward_queries_kernel", "backward_keys_kernel"):
        assert set(triton_kernels.VALUES) <= set(getattr(triton_kernels, kernel).arg_names)


@pytest.mark.parametrize("options", [{}, {"same_length": True}, {"ext_len": 2}, {"memory_start": "zeros"}], ids=str)
def test_a_model_gives_the_same_losses_and_gradients(options: dict) -> None:
    """While the memory fills, and with the queries of the last layer cut to the targets."""
    stream, results = random_stream(2, 24).to(DEVICE), []
    for kernel in ("eager", "triton"):
        model = tiny_model(mem_len=7, clamp_len=6, **options).float().to(DEVICE)
        model.use_attention(kernel)
        nll, memory = score_segments(model, stream[:, :20], [3, 9, 5, 2])
        last, _ = model.score(stream[:, 17:23], stream[:, 20:24], memory)
        (nll.mean() + last.mean()).backward()
        results.append([nll, last, *(parameter.grad for parameter in model.parameters())])
    for eager, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-4, atol=2e-5)


def test_other_types_than_16_and_32_bits_are_refused() -> None:
    model = tiny_model().to(DEVICE)
    model.use_attention("triton")
    with pytest.raises(OptionError, match=r"attention=triton: has 16 or 32 bits a number, not torch.float64"):
        model.score(
            torch.zeros(1, 3, dtype=torch.long, device=DEVICE), torch.zeros(1, 3, dtype=torch.long, device=DEVICE)
        )


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.model.kernels.compile_for_a_gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
