"""Attention in parts on the CPU: what is stored, what is overwritten, and which way is chosen."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.kernels import cpu
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, attention_mask

READER = nn.Identity()
TYPES = [torch.float64, torch.float32, torch.bfloat16]


def attended(T: int, M: int, dropout: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor]]:
    """Heads of an attention with two streams and heads, and the tensors that have gradients."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 2, T, 4), (2, 2, M + T, 4), (2, 2, M + T, 4), (2, M + T + 1, 4), (2, 4), (2, 4)]
    inputs = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    q_HBTE, k_HBKE, values, r_HSE, u_HE, v_HE = (x * 1 for x in inputs)
    visible = VisibleKeys(attention_mask(T, M, M, None, q_HBTE), sees_memory=True)
    torch.manual_seed(2)
    return cpu.attend(q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, values, visible, Dropout(dropout)), inputs


def test_probabilities_that_are_computed_again_are_dropped_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BLOCK", {torch.float64: 7})
    found = []
    for checkpoint in (cpu.checkpoint, lambda f, *args, **_: f(*args)):  # the second one stores them
        monkeypatch.setattr(cpu, "checkpoint", checkpoint)
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


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (8, 64, 321)])
def test_the_softmax_and_its_gradient_are_torchs_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The gradient is of the private `_softmax_backward_data`."""
    logits, gradient = 5 * torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    logits[..., 1:][torch.rand(logits[..., 1:].shape) < 0.2] = float("-inf")
    results = []
    for softmax in (lambda x: cpu.softmax(x, READER), lambda x: torch.softmax(x, -1)):
        leaf = logits.clone().requires_grad_()
        p = softmax(leaf + 0)
        (p * gradient).sum().backward()
        results.append((p.detach(), leaf.grad))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_the_softmax_has_a_second_derivative() -> None:
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: cpu.softmax(x + 0, READER), logits)
    assert torch.autograd.gradgradcheck(lambda x: cpu.softmax(x + 0, READER), logits)


@pytest.mark.parametrize("kind", ["forward_pre", "forward", "full_backward_pre", "full_backward"])
def test_hooks_of_a_module_and_of_all_modules_are_found(kind: str) -> None:
    """In the private `_forward_pre_hooks`, `_forward_hooks`, `_backward_pre_hooks`, `_backward_hooks`, and by the
    private `_has_any_global_hook`.
    """
    module = nn.Linear(2, 2)
    with getattr(module, f"register_{kind}_hook")(lambda *_: None):
        assert cpu.has_hooks(module)
        assert not cpu.has_hooks(nn.Linear(2, 2))
    with getattr(nn.modules.module, f"register_module_{kind}_hook")(lambda *_: None):
        assert cpu.has_hooks(module)
    assert not cpu.has_hooks(module)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # the sinusoids that W_{k,R} reads are constants
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_hooks_of_every_module_see_what_stays_and_change_no_gradient(dropout: float) -> None:
    model, stream, seen = tiny_model(dropout=dropout, attention_dropout=dropout), random_stream(2, 9), []

    def gradients() -> list[Tensor | None]:
        torch.manual_seed(1)
        loss = model.score(stream[:, :-1], stream[:, 1:])[0].sum()
        return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

    def keep(module: nn.Module, *tensors: object) -> None:
        seen.extend((x, x.detach().clone()) for x in tree_leaves(tensors) if isinstance(x, Tensor))

    without = gradients()
    leaves = [module for module in model.modules() if isinstance(module, (nn.Linear, Dropout))]
    with ExitStack() as hooks:
        for module in leaves:
            hooks.enter_context(module.register_forward_hook(keep))
            hooks.enter_context(module.register_full_backward_hook(keep))
        torch.testing.assert_close(gradients(), without, rtol=0, atol=0)
    assert len(seen) >= 3 * len(leaves)
    for kept, before in seen:
        assert torch.equal(kept, before)
