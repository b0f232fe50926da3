"""The Triton kernel beside the scores of section 3.3, in Triton's interpreter or on a GPU: `make test-triton`.

The interpreter multiplies the bits of bfloat16 as integers (docs/upstream/triton_interpreter_bf16.sh):
there 16 bits are float16. It cannot show that a GPU computes the same.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu_session import attention_alone
from tests.gpu_path.counting import Launches
from tests.gpu_path.test_attention import SIZES
from tests.model.attention_problems import DEVICE, Problem, heads_and_gradients
from tests.model.test_attention_routes import NO_DROPOUT, PROBLEMS
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.attention import (
    Attention,
    AttentionInputs,
    attend_as_written,
    masked_scores,
)
from txl_lightning.model.layers import Dropout

triton = pytest.importorskip("triton", reason="Triton has an environment of its own")
tl = triton.language
if DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip(
        "without a GPU it needs TRITON_INTERPRET=1: make test-triton", allow_module_level=True
    )

from examples.kernels import relative  # noqa: E402

FURTHER = [
    Problem(E=41, T=17, M=16, filled=16, B=1, H=1),
    Problem(E=64, T=33, M=31, filled=31, B=1, H=1),
    Problem(E=130, T=5, M=4, filled=4, B=1, H=1),
    Problem(T=16, M=16, filled=16, B=2, H=2),
    Problem(T=15, M=17, filled=17, B=2, H=2),
    Problem(T=3, M=90, filled=40, attention_len=20, B=2, H=2),
    Problem(T=70, M=2, filled=2, attention_len=5, B=1, H=2),
    Problem(
        "abd",
        T=20,
        M=18,
        filled=18,
        table=True,
        documents=True,
        B=2,
        H=2,
    ),
    Problem(
        "ac",
        T=30,
        M=18,
        filled=5,
        attention_len=7,
        documents=True,
        B=2,
        H=2,
    ),
    Problem("bd", T=2, M=0, filled=0, B=3, H=1),
]
CASES = [replace(problem, B=1 + problem.documents, H=2) for problem in PROBLEMS] + FURTHER


@pytest.fixture(autouse=True)
def _tiles_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles at sizes that the interpreter can do."""
    if DEVICE == "cpu":
        monkeypatch.setattr(relative, "tile_of", lambda *_: 16)


def plain(x: AttentionInputs) -> Tensor:
    return attend_as_written(x, NO_DROPOUT)


def kernel(x: AttentionInputs, p: float = 0.0) -> Tensor:
    q, k, values, r, u, v, bias, terms, visible = x
    return relative.attend(
        q,
        k,
        r,
        u,
        v,
        values,
        visible,
        Dropout(p),
        bias,
        terms,
    )


def check(
    problem: Problem,
    expected: Callable[[AttentionInputs], Tensor],
    found: Callable[[AttentionInputs], Tensor],
) -> None:
    """Compare heads and all gradients in float32 with another implementation in float64."""
    exact = heads_and_gradients(problem, expected, torch.float64)
    results = heads_and_gradients(problem, found, torch.float32)
    assert results.keys() == exact.keys()
    for name, result in results.items():
        torch.testing.assert_close(
            result.double(),
            exact[name],
            rtol=1e-4,
            atol=2e-5,
        )


@pytest.mark.parametrize("problem", CASES, ids=str)
def test_heads_and_all_gradients_are_those_of_the_scores(problem: Problem) -> None:
    check(problem, plain, kernel)


def test_sixteen_bits_are_as_near_as_the_scores_in_sixteen_bits() -> None:
    problem = Problem(T=20, filled=13, B=2, H=2)
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    exact = heads_and_gradients(problem, plain, torch.float64)
    ours = heads_and_gradients(problem, kernel, half)
    theirs = heads_and_gradients(problem, plain, half)
    far = torch.stack([(ours[name] - x).norm() for name, x in exact.items()])
    as_far = torch.stack([(theirs[name] - x).norm() for name, x in exact.items()])
    # A single gradient of one draw varies by a third.
    assert (far <= 1.5 * as_far).all(), (far, as_far)
    assert far.norm() <= 1.1 * as_far.norm()


@triton.jit
def _kept_everywhere(seed, out, K, p, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    hb = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, COLUMNS)[None, :]
    kept = relative._kept(seed, hb, i, j, K, p)
    tl.store(
        out + (hb * ROWS + i) * COLUMNS + j,
        kept.to(tl.float32),
    )


@pytest.mark.parametrize("terms", ["abcd", "ac"])
def test_dropout_is_a_function_of_seed_and_place_in_both_passes(terms: str) -> None:
    problem = Problem(
        terms,
        T=21,
        M=19,
        filled=19,
        B=2,
        H=2,
    )
    p = 0.3
    torch.manual_seed(5)
    seed = torch.randint(1 << 62, (1,), device=DEVICE)
    kept = torch.empty(4, 32, 64, device=DEVICE)
    _kept_everywhere[(4,)](seed, kept, 40, p, 32, 64)
    kept_HBTK = kept[:, :21, :40].unflatten(
        0,
        (2, 2),
    )
    assert abs(kept_HBTK.mean().item() - (1 - p)) < 0.03
    assert not torch.equal(kept_HBTK[0, 0], kept_HBTK[0, 1])

    def with_dropout(x: AttentionInputs) -> Tensor:
        weights = masked_scores(x).softmax(-1)
        dropped = weights * kept_HBTK.to(weights.dtype)
        return dropped @ x.values_HBKE / (1 - p)

    def seeded(x: AttentionInputs) -> Tensor:
        torch.manual_seed(5)
        return kernel(x, p)

    check(problem, with_dropout, seeded)


def test_queries_that_see_later_keys_are_refused() -> None:
    def acausal(x: AttentionInputs) -> Tensor:
        visible = x.visible._replace(causal=False)
        return kernel(x._replace(visible=visible))

    with pytest.raises(ValueError, match="causal masks"):
        heads_and_gradients(Problem(B=2, H=2), acausal, torch.float32)


@pytest.mark.parametrize(
    "options", [{}, {"encoding": "shaw", "table_len": 5}, {"memory_reset": "document"}], ids=str
)
def test_a_model_has_the_same_losses_and_gradients(options: dict[str, Any]) -> None:
    """Through its projections, whose queries are no contiguous tensor, and with a memory that fills."""
    model = tiny_model(mem_len=9, **options).float().to(DEVICE)
    targets = random_stream(2, 13).to(DEVICE)
    tokens = targets.clone()
    if "memory_reset" in options:
        tokens[1, 3] = -1 - tokens[1, 3]  # a document begins
    results = []
    for attend in (None, relative.attend):
        for attention in model.modules():
            if isinstance(attention, Attention):
                attention.kernel = attend
        memory = model.start_memory(2)
        losses = []
        for start in (0, 6):
            tokens_BT = tokens[:, start : start + 6]
            targets_BT = targets[:, start + 1 : start + 7]
            nll_BT, memory = model.score(tokens_BT, targets_BT, memory)
            losses.append(nll_BT)
        mean = torch.cat(losses).mean()
        gradients = torch.autograd.grad(mean, list(model.parameters()), materialize_grads=True)
        results.append([*losses, *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_the_session_on_a_gpu_measures_the_kernel() -> None:
    measured = attention_alone(DEVICE, tiny=True)
    assert measured["relative"]["distance"] < 1e-3
    assert measured["relative"]["ms"] > 0


KERNELS = ("_forward", "_backward_of_queries", "_backward_of_keys", "_backward_of_distances")
RESULTS = {
    "heads",
    "log_sums",
    "deltas",
    "q_grad",
    "k_grad",
    "values_grad",
    "r_grad",
    "u_grad",
    "v_grad",
}


@pytest.mark.parametrize(("sizes", "scores_written"), [("enwik8 base", 0.42), ("wt103 base", 0.95)])
def test_launches_and_bytes_of_a_layer(
    sizes: str, scores_written: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tests/gpu_path/test_attention.py` counts them for torch's kernel: no kernel writes scores."""
    H, B, T, K, E = SIZES[sizes]
    kernels: Counter[str] = Counter()
    written: dict[str, int] = {}

    def recorded(name: str) -> Any:
        names = getattr(relative, name).arg_names

        def launch(*arguments: Any, **_: Any) -> None:
            kernels[name] += 1
            for argument, x in zip(names, arguments, strict=False):
                if argument in RESULTS and x is not None:
                    written[argument] = x.nbytes

        return defaultdict(lambda: launch)  # by grid

    for name in KERNELS:
        monkeypatch.setattr(relative, name, recorded(name))
    shapes = [
        (H, B, T, E),
        (H, B, K, E),
        (H, B, K, E),
        (H, K + 1, E),
        (H, E),
        (H, E),
    ]
    tensors = [torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
    arguments = (*tensors, None, None, None, 0.0, "abcd")
    with Launches() as counted:
        heads, log_sums = relative._attended(*arguments)
        relative._gradients(*arguments, heads, log_sums, torch.empty_like(heads), True)
    assert kernels == dict.fromkeys(KERNELS, 1)
    assert counted.n == 3, counted.by_name  # sums of the parts of r, u and v
    n_written = sum(written.values()) + counted.written
    assert n_written <= scores_written * 2 * H * B * T * K
