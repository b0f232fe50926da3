"""Attention in parts on the CPU: what is stored, and what hooks see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model import attention
from txl_lightning.model.attention import Operands, softmax_attention
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
    return softmax_attention(operands, Dropout(dropout)), inputs


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


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # the sinusoids that W_{k,R} reads are constants
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_hooks_of_every_module_see_what_stays_and_change_no_gradient(dropout: float) -> None:
    model, stream, seen = tiny_model(dropout=dropout, attention_dropout=dropout), random_stream(2, 9), []

    def gradients() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        loss = model.score(stream[:, :-1], stream[:, 1:])[0].sum()
        return torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)

    def keep(module: nn.Module, *tensors: object) -> None:
        seen.extend((x, x.detach().clone()) for x in tree_leaves(tensors) if isinstance(x, Tensor))

    without = gradients()
    leaves = [module for module in model.modules() if isinstance(module, (nn.Linear, Dropout))]
    for module in leaves:
        module.register_forward_hook(keep)
        module.register_full_backward_hook(keep)
    torch.testing.assert_close(gradients(), without, rtol=0, atol=0)
    assert len(seen) >= 3 * len(leaves)
    assert all(torch.equal(kept, before) for kept, before in seen)
