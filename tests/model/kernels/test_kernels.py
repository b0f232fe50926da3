"""Every kernel beside `eager`: outputs and gradients, for all terms and lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SUBSETS, random_stream, tiny_model
from txl_lightning.errors import OptionError
from txl_lightning.model import kernels
from txl_lightning.model.kernels import cpu, eager, flex
from txl_lightning.model.kernels.eager import Factors
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, attention_mask

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on the CPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Problem:
    """Sizes and terms of one attention; with `table` (d) is a bias of the distances."""

    terms: str = "abcd"
    T: int = 21
    M: int = 13
    filled: int = 7
    attention_len: int | None = None
    table: bool = False
    documents: bool = False
    B: int = 2
    H: int = 3
    E: int = 5

    def factors(self, dtype: torch.dtype, gradients: bool) -> dict[str, Tensor | None]:
        """Query, keys and values, and what the logits by distance are made of."""
        generator, S = torch.Generator().manual_seed(0), self.M + self.T + 1

        def random(needed: bool, *shape: int) -> Tensor | None:
            x = torch.randn(shape, generator=generator).to(DEVICE, dtype)
            return x.requires_grad_(gradients) if needed else None

        whole, alike = (self.H, self.B, self.T, self.E), (self.H, 1, 1, self.E)
        has_query, by_rows = bool(set("ac") & set(self.terms)), "b" if self.table else "bd"
        has_rows = bool(set(by_rows) & set(self.terms))
        return {
            "query": random(has_query, *(whole if "a" in self.terms else alike)),
            "keys": random(True, self.H, self.B, S - 1, self.E),
            "values": random(True, self.H, self.B, S - 1, self.E),
            "rows": random(has_rows, *(whole if "b" in self.terms else alike)),
            "r_HSE": random(has_rows, self.H, S, self.E),
            "bias_HS": random(self.table and "d" in self.terms, self.H, S),
        }

    def visible(self, like: Tensor) -> VisibleKeys:
        mask_TK = attention_mask(self.T, self.M, self.filled, self.attention_len, like)
        if self.documents:  # the second stream begins one at its fourth token
            hidden = torch.zeros_like(mask_TK)
            hidden[3:, : self.M + 3] = float("-inf")
            mask_TK = torch.stack([mask_TK, mask_TK + hidden])
        return VisibleKeys(mask_TK, self.M - self.filled, self.attention_len)

    def run(self, attend: Callable[..., Tensor], dtype: torch.dtype, gradients: bool = True) -> dict[str, Tensor]:
        """The output of a kernel, and the gradients of all its inputs by name."""
        factors = self.factors(dtype, gradients)
        query, k, v, *of_distances = factors.values()
        with torch.set_grad_enabled(gradients):
            output = attend(Factors(query, k, v, self.visible(k), *of_distances), Dropout(0.0))
        if not gradients:
            return {"output": output}
        inputs = {name: x for name, x in factors.items() if x is not None}
        found = torch.autograd.grad(output, list(inputs.values()), output.detach().cos(), allow_unused=True)
        return {"output": output, **{name: g for name, g in zip(inputs, found, strict=True) if g is not None}}


PROBLEMS = [
    *(Problem(terms) for terms in SUBSETS),
    *(Problem(terms, table=True) for terms in ("abcd", "abd", "cd", "ad", "d")),
    Problem(T=1, M=40, filled=40, B=1),
    Problem(T=1, M=0, filled=0),
    Problem(T=16, M=0, filled=0),
    Problem(T=9, M=60, filled=17),
    Problem(T=9, M=60, filled=60),
    Problem(T=40, M=24, filled=3, attention_len=9),
    Problem(T=40, M=24, filled=24, attention_len=24),
    Problem(documents=True),
    Problem("ac", documents=True),
]
WAYS = {  # kernel, whether it has gradients, constants of `cpu`
    "cpu": (cpu.attend, True, {}),
    "cpu, blocks of queries": (cpu.attend, True, {"BLOCK": {torch.float64: 8}}),
    "cpu, without gradient": (cpu.attend, False, {}),
    "cpu, no gradient, blocks and groups of heads": (
        cpu.attend,
        False,
        {"QUERIES_AT_ONCE": 4, "LOGITS_BYTES_AT_ONCE": 1},
    ),
    "fused": (lambda factors, dropout: eager.attend_fused(factors), False, {}),
    "flex": (flex.attend, DEVICE == "cuda", {}),
}


def cases() -> list[Any]:
    """Every problem that a kernel can compute; flex takes a second each on the CPU, so a few always."""
    found = []
    for way, problem in itertools.product(WAYS, PROBLEMS):
        computed = not problem.documents if way == "flex" else way != "fused" or bool(set("ac") & set(problem.terms))
        rare = way == "flex" and problem not in (PROBLEMS[0], PROBLEMS[15], PROBLEMS[16], PROBLEMS[26])
        marks = [pytest.mark.slow] if rare else []
        if computed and (DEVICE == "cpu" or not way.startswith("cpu")):
            found.append(pytest.param(way, problem, marks=marks, id=f"{way}: {problem}"))
    return found


@pytest.mark.parametrize(("way", "problem"), cases())
def test_every_kernel_is_eager_attention(way: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, gradients, constants = WAYS[way]
    on_gpu = DEVICE == "cuda"  # flex has heads of 16 or more there, and no float64
    problem, dtype = (replace(problem, E=16), torch.float32) if on_gpu else (problem, torch.float64)
    expected = problem.run(eager.attend, torch.float64, gradients)
    for name, value in constants.items():
        monkeypatch.setattr(cpu, name, value)
    found = problem.run(attend, dtype, gradients)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if on_gpu else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close({name: x.double() for name, x in found.items()}, expected, **tolerance)


@pytest.mark.skipif(DEVICE == "cuda", reason="blocks are for the CPU")
@pytest.mark.parametrize("gradients", [True, False])
def test_blocks_in_bfloat16(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Problem().run(eager.attend, torch.bfloat16, gradients)
    monkeypatch.setattr(cpu, "BLOCK", {torch.bfloat16: 8})
    monkeypatch.setattr(cpu, "QUERIES_AT_ONCE", 4)
    found = Problem().run(cpu.attend, torch.bfloat16, gradients)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05 * value.abs().max().item())


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_kernel_is_that_of_the_device_and_the_choice(
    grad: bool, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    for name, module, function in (
        ("eager", eager, "attend"),
        ("fused", eager, "attend_fused"),
        ("cpu", cpu, "attend"),
        ("flex", flex, "attend"),
    ):
        monkeypatch.setattr(module, function, lambda *_, name=name: called.append(name) or torch.zeros(1, 1, 1, 1))
    monkeypatch.setattr(kernels, "is_eager_on_cpu", lambda tensor: on_cpu)
    x = torch.zeros(1, 1, 1, 1)
    for name, p in (("default", 0.0), ("default", 0.5), ("flex", 0.0)):
        with torch.set_grad_enabled(grad):
            kernels.attend(name, Factors(x, x, x, VisibleKeys(x[0, 0], 0, None)), Dropout(p))
    assert called == [*(["cpu", "cpu"] if on_cpu else ["eager" if grad else "fused", "eager"]), "flex"]


def test_flex_refuses_what_it_cannot_compute() -> None:
    with pytest.raises(OptionError, match="attention=fast: must be one of default, flex"):
        tiny_model().use_attention("fast")
    stream = random_stream(2, 5).to(DEVICE)
    model = tiny_model(attention_dropout=0.1, d_head=16).float().to(DEVICE)
    model.use_attention("flex")
    with pytest.raises(OptionError, match="attention=flex: has no dropout of attention probabilities"):
        model.score(stream[:, :-1], stream[:, 1:])
    with torch.no_grad():
        model.eval().score(stream[:, :-1], stream[:, 1:])
    documents = model.with_lengths(memory_reset="document")
    with pytest.raises(OptionError, match=r"attention=flex: has one mask .*; memory_reset=document.* need default"):
        documents(stream)
    if DEVICE == "cpu":
        with pytest.raises(OptionError, match="attention=flex: has no gradients on the CPU; use default"):
            model(stream)
    else:
        with pytest.raises(OptionError, match=r"attention=flex: needs model\.d_head >= 16"):
            Problem(E=8).run(flex.attend, torch.float32)
