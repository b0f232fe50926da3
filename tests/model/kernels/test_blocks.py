"""Attention in parts on the CPU: what is stored, and what is computed again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from txl_lightning.model import attention
from txl_lightning.model.attention import Operands, attend
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, attention_mask


def attended(T: int, M: int, dropout: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor]]:
    """Heads of an attention with two streams and heads, and the tensors that have gradients."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 2, T, 4), (2, 2, M + T, 4), (2, 2, M + T, 4), (2, M + T + 1, 4), (2, 4), (2, 4)]
    inputs = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    q_HBTE, k_HBKE, values, r_HSE, u_HE, v_HE = (x * 1 for x in inputs)
    visible = VisibleKeys(attention_mask(T, M, M, None, q_HBTE), sees_memory=True)
    torch.manual_seed(2)
    operands = Operands(q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, None, "abcd", values, visible)
    return attend(operands, Dropout(dropout)), inputs


def test_probabilities_that_are_computed_again_are_dropped_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", {torch.float64: 7})
    found = []
    for checkpoint in (attention.checkpoint, lambda f, *args, **_: f(*args)):  # the second one stores them
        monkeypatch.setattr(attention, "checkpoint", checkpoint)
        output, inputs = attended(T=20, M=4, dropout=0.4)
        torch.rand(3)  # the generator has moved on when the backward pass begins
        found.append([output.detach(), *torch.autograd.grad(output.square().sum(), inputs)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_no_probabilities_are_stored() -> None:
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    T, M = 512, 512
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attended(T, M, dropout=0.1, dtype=torch.float32)
    probabilities, mask = 2 * 2 * T * (M + T) * 4, T * (M + T) * 4
    assert sum(saved.values()) < mask + probabilities / 32
