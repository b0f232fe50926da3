"""Every way of attention beside the formula of section 3.3: outputs and gradients, for all terms and lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import SUBSETS, tiny_model
from txl_lightning.model import attention
from txl_lightning.model.attention import Operands, attend_fused, attend_plainly, softmax_attention
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, attention_mask

Way = Callable[[Operands], Tensor]
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

    def run(self, attend: Way, dtype: torch.dtype, gradients: bool = True) -> dict[str, Tensor]:
        """The output of a way of attention, and the gradients of all its inputs by name."""
        inputs = self.inputs(dtype, gradients)
        absent: dict[str, Any] = dict.fromkeys(("r_HSE", "u_HE", "v_HE", "bias_HS"))
        operands = Operands(**absent | inputs, terms=self.terms, visible=self.visible(inputs["q_HBTE"]))
        with torch.set_grad_enabled(gradients):
            output = attend(operands)
        if not gradients:
            return {"output": output}
        found = torch.autograd.grad(output, list(inputs.values()), output.detach().cos(), materialize_grads=True)
        return {"output": output, **dict(zip(inputs, found, strict=True))}


def judge(operands: Operands) -> Tensor:
    """Softmax of the sum of the four terms, each by its formula; r by the distance of each pair."""
    q, k, r, u, v, bias, terms, values, visible = operands
    (T, E), K = q.shape[2:], k.shape[2]
    distance_TK = (K - T + torch.arange(T)[:, None] - torch.arange(K)).clamp(min=0).to(q.device)
    A = torch.zeros((), dtype=q.dtype, device=q.device)
    if "a" in terms:
        A = A + torch.einsum("hbte,hbke->hbtk", q, k)
    if u is not None:
        A = A + torch.einsum("he,hbke->hbk", u, k)[:, :, None]
    if r is not None and "b" in terms:
        A = A + torch.einsum("hbte,htke->hbtk", q, r[:, K - distance_TK])
    if r is not None and v is not None:
        A = A + torch.einsum("he,htke->htk", v, r[:, K - distance_TK])[:, None]
    if bias is not None:
        A = A + bias[:, None, K - distance_TK]
    return (A / math.sqrt(E) + visible.mask_TK).softmax(-1).expand(*q.shape[:3], K) @ values


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
NONE = Dropout(0.0)


def chosen(operands: Operands) -> Tensor:
    return softmax_attention(operands, NONE)


WAYS: dict[str, tuple[Way, bool, dict[str, Any]]] = {
    # function, whether it has gradients, constants of `attention`
    "plain": (lambda x: attend_plainly(x, NONE), True, {}),
    "chosen": (chosen, True, {}),
    "in blocks": (chosen, True, {"BLOCK": {torch.float64: 8}}),
    "without gradient": (chosen, False, {}),
    "without gradient, in parts": (chosen, False, {"QUERIES_AT_ONCE": 4, "SCORES_BYTES_AT_ONCE": 1}),
    "torch's kernel": (attend_fused, True, {}),
    "torch's kernel, without gradient": (attend_fused, False, {}),
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_the_softmax_of_the_scores(way: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, gradients, constants = WAYS[way]
    dtype = torch.float32 if DEVICE == "cuda" else torch.float64  # for torch's efficient kernel
    expected = problem.run(judge, torch.float64, gradients)
    for name, value in constants.items():
        monkeypatch.setattr(attention, name, value)
    found = problem.run(attend, dtype, gradients)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if DEVICE == "cuda" else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close({name: x.double() for name, x in found.items()}, expected, **tolerance)


@pytest.mark.skipif(DEVICE == "cuda", reason="blocks are for the CPU")
@pytest.mark.parametrize("gradients", [True, False])
def test_blocks_in_bfloat16(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Problem().run(judge, torch.bfloat16, gradients)
    monkeypatch.setattr(attention, "BLOCK", {torch.bfloat16: 8})
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 4)
    found = Problem().run(chosen, torch.bfloat16, gradients)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05 * value.abs().max().item())


@pytest.mark.parametrize("training", [True, False])
def test_the_scores_that_are_read_are_the_scores_that_run(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step on the CPU takes A_ij from `scores`; a long evaluation too, others share its two parts."""
    called = []
    for name in ("scores", "content_and_position"):
        kept = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda *args, n=name, f=kept, **kw: called.append(n) or f(*args, **kw))
    model = tiny_model(n_layer=1, mem_len=400).train(training)
    with torch.set_grad_enabled(training):
        memory = model(torch.zeros(1, 400, dtype=torch.int64))[1]
        called.clear()
        model(torch.zeros(1, 80, dtype=torch.int64), memory)
    assert called == ["scores", "content_and_position"]


@pytest.mark.parametrize("on_cpu", [True, False])
def test_torchs_kernel_computes_elsewhere(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called, kept = [], attention.attend_fused
    monkeypatch.setattr(attention, "attend_fused", lambda *args: called.append(1) or kept(*args))
    monkeypatch.setattr(attention, "is_eager_on_cpu", lambda tensor: on_cpu)
    tiny_model(n_layer=1)(torch.zeros(1, 3, dtype=torch.int64))
    assert called == [1] * (not on_cpu)
