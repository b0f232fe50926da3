"""Every kernel beside the scores of section 3.3: outputs and gradients, for all terms and lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SUBSETS, tiny_model
from txl_lightning.model.attention import scores
from txl_lightning.model.kernels import cpu, fused
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, attention_mask

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

    def inputs(self, dtype: torch.dtype, gradients: bool) -> dict[str, Tensor]:
        """Arguments of `scores`, and the values."""
        generator, S, by_r = torch.Generator().manual_seed(0), self.M + self.T + 1, "b" if self.table else "bd"
        shapes = {
            "q_HBTE": (True, (self.H, self.B, self.T, self.E)),
            "k_HBKE": (True, (self.H, self.B, S - 1, self.E)),
            "values_HBKE": (True, (self.H, self.B, S - 1, self.E)),
            "r_HSE": (bool(set(by_r) & set(self.terms)), (self.H, S, self.E)),
            "u_HE": ("c" in self.terms, (self.H, self.E)),
            "v_HE": ("d" in self.terms and not self.table, (self.H, self.E)),
            "bias_HS": ("d" in self.terms and self.table, (self.H, S)),
        }
        drawn = {name: torch.randn(shape, generator=generator).to(DEVICE, dtype) for name, (_, shape) in shapes.items()}
        return {name: x.requires_grad_(gradients) for name, x in drawn.items() if shapes[name][0]}

    def visible(self, like: Tensor) -> VisibleKeys:
        mask_TK = attention_mask(self.T, self.M, self.filled, self.attention_len, like)
        if self.documents:  # the second stream begins one at its fourth token
            hidden = torch.zeros_like(mask_TK)
            hidden[3:, : self.M + 3] = float("-inf")
            mask_TK = torch.stack([mask_TK, mask_TK + hidden])
        return VisibleKeys(mask_TK, self.filled == self.M and self.attention_len is None)

    def run(self, attend: Callable[..., Tensor], dtype: torch.dtype, gradients: bool = True) -> dict[str, Tensor]:
        """The output of a kernel, and the gradients of all its inputs by name."""
        inputs = self.inputs(dtype, gradients)
        arguments = {**dict.fromkeys(("r_HSE", "u_HE", "v_HE")), **inputs}
        with torch.set_grad_enabled(gradients):
            output = attend(**arguments, visible=self.visible(inputs["q_HBTE"]), dropout=Dropout(0.0), terms=self.terms)
        if not gradients:
            return {"output": output}
        found = torch.autograd.grad(output, list(inputs.values()), output.detach().cos(), materialize_grads=True)
        return {"output": output, **dict(zip(inputs, found, strict=True))}


def plain(values_HBKE: Tensor, visible: VisibleKeys, dropout: Dropout, **of_scores: Any) -> Tensor:
    """The judge of all kernels."""
    return (scores(**of_scores) + visible.mask_TK).softmax(-1) @ values_HBKE


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
    "cpu, no gradient, in blocks": (cpu.attend, False, {"QUERIES_AT_ONCE": 4, "SCORES_BYTES_AT_ONCE": 1}),
    "fused": (fused.attend, True, {}),
    "fused, without gradient": (fused.attend, False, {}),
}
CASES = [
    pytest.param(way, problem, id=f"{way}: {problem}")
    for way, problem in itertools.product(WAYS, PROBLEMS)
    if DEVICE == "cpu" or not way.startswith("cpu")
]


@pytest.mark.parametrize(("way", "problem"), CASES)
def test_every_kernel_is_the_softmax_of_the_scores(way: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, gradients, constants = WAYS[way]
    dtype = torch.float32 if DEVICE == "cuda" else torch.float64  # for torch's efficient kernel
    expected = problem.run(plain, torch.float64, gradients)
    for name, value in constants.items():
        monkeypatch.setattr(cpu, name, value)
    found = problem.run(attend, dtype, gradients)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if DEVICE == "cuda" else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close({name: x.double() for name, x in found.items()}, expected, **tolerance)


@pytest.mark.skipif(DEVICE == "cuda", reason="blocks are for the CPU")
@pytest.mark.parametrize("gradients", [True, False])
def test_blocks_in_bfloat16(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Problem().run(plain, torch.bfloat16, gradients)
    monkeypatch.setattr(cpu, "BLOCK", {torch.bfloat16: 8})
    monkeypatch.setattr(cpu, "QUERIES_AT_ONCE", 4)
    found = Problem().run(cpu.attend, torch.bfloat16, gradients)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05 * value.abs().max().item())


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_kernel_is_that_of_the_device(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name, module in (("fused", fused), ("cpu", cpu)):
        kernel = module.attend
        monkeypatch.setattr(module, "attend", lambda *args, n=name, k=kernel: called.append(n) or k(*args))
    monkeypatch.setattr(cpu, "is_eager_on_cpu", lambda tensor: on_cpu)
    tiny_model(n_layer=1)(torch.zeros(1, 3, dtype=torch.int64))
    assert called == ["cpu" if on_cpu else "fused"]
