"""Softmax and losses that overwrite what no one reads again: the same numbers as torch's, in fewer tensors."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import (
    register_module_forward_hook,
)
from torch.utils._pytree import tree_leaves

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.kernels.cpu_parts import softmax_of
from txl_lightning.model.softmax import ROWS_BYTES, negative_log_likelihood

READER = nn.Identity()
TYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(1, 1, 1), (3, 5, 7), (8, 64, 321), (2, 3, 5000)]


def scores_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    scores = 5 * torch.randn(shape, dtype=dtype)
    scores[..., 1:][torch.rand(scores[..., 1:].shape) < 0.2] = float("-inf")
    return scores, torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_softmax_and_its_gradient_are_torchs_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores, gradient = scores_and_gradient(shape, dtype)
    results = []
    for softmax in (lambda x: softmax_of(x, READER), lambda x: torch.softmax(x, -1)):
        leaf = scores.clone().requires_grad_()
        p = softmax(leaf + 0)
        (p * gradient).sum().backward()
        results.append((p.detach(), leaf.grad))
    (ours, our_gradient), (theirs, their_gradient) = results
    assert torch.equal(ours, theirs)
    assert torch.equal(our_gradient, their_gradient)


def test_the_softmax_takes_the_memory_of_the_scores_and_its_gradient_that_of_the_gradient() -> None:
    leaf = torch.randn(2, 3, 4, requires_grad=True)
    scores = leaf + 0
    p = softmax_of(scores, READER)
    assert p.data_ptr() == scores.data_ptr()
    places = []
    scores.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    given = torch.randn(2, 3, 4)
    p.backward(given)
    assert places == [given.data_ptr()]


def test_the_softmax_has_a_second_derivative() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax_of(x + 0, READER), x)
    assert torch.autograd.gradgradcheck(lambda x: softmax_of(x + 0, READER), x)


def test_the_gradient_of_a_sum_has_no_memory_to_take() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    softmax_of(x + 0, READER).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros(2, 3, 4))


@pytest.mark.parametrize("of_all_modules", [False, True])
def test_a_hook_may_keep_the_probabilities_and_their_gradient(of_all_modules: bool) -> None:
    model, stream, seen = tiny_model(), random_stream(2, 9), []
    dropout = model.layers[0].attention.dropout  # type: ignore[union-attr]

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if module is dropout:
            seen.append((output, output.detach().clone()))
            output.register_hook(lambda gradient: seen.append((gradient, gradient.clone())))

    register = register_module_forward_hook if of_all_modules else dropout.register_forward_hook
    with register(hook):  # type: ignore[operator]
        nll, _ = model.score(stream[:, :-1], stream[:, 1:])
    gradient, *_ = torch.autograd.grad(nll.sum(), [seen[0][0], *model.parameters()])
    seen.append((gradient, seen[1][1]))
    assert len(seen) == 3
    for kept, before in seen:
        assert torch.equal(kept, before)


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


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("overwrite", [True, False])
def test_losses_of_many_rows_are_torchs_bit_for_bit(dtype: torch.dtype, overwrite: bool) -> None:
    width = 3 * ROWS_BYTES // 8 // 10  # several groups of rows in every type
    logits, targets, cotangent = 5 * torch.randn(25, width, dtype=dtype), torch.randint(width, (25,)), torch.randn(25)
    results = []
    for losses in (
        lambda x: negative_log_likelihood(x, targets, overwrite),
        lambda x: F.cross_entropy(x.to(torch.promote_types(dtype, torch.float32)), targets, reduction="none"),
    ):
        leaf = logits.clone().requires_grad_()
        nll = losses(leaf + 0)
        nll.backward(cotangent.to(nll.dtype))
        results.append((nll.detach(), leaf.grad))
    (ours, our_gradient), (theirs, their_gradient) = results
    assert torch.equal(ours, theirs)
    assert torch.equal(our_gradient, their_gradient)


def test_logits_are_kept_unless_they_may_be_overwritten() -> None:
    logits, targets = torch.randn(4, 6), torch.tensor([0, 5, 2, 3])
    before = logits.clone()
    nll = negative_log_likelihood(logits, targets)
    assert torch.equal(logits, before)
    assert torch.equal(negative_log_likelihood(logits, targets, overwrite=True), nll)
    assert torch.equal(logits, before.log_softmax(1))


def test_a_graph_that_is_kept_gives_its_gradient_twice() -> None:
    leaf, targets = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 5, 2, 3])
    nll = negative_log_likelihood(leaf + 0, targets, overwrite=True)
    each = [torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in nll]
    (together,) = torch.autograd.grad(nll.sum(), leaf)
    torch.testing.assert_close(torch.stack(each).sum(0), together)
