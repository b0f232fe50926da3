"""Softmax and losses that overwrite what no one reads again: the same numbers as torch's, in fewer tensors."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from txl_lightning.model.kernels.cpu_parts import softmax_of
from txl_lightning.model.softmax import ROWS_BYTES, negative_log_likelihood

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
    for softmax in (softmax_of, lambda x: torch.softmax(x, -1)):
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
    p = softmax_of(scores)
    assert p.data_ptr() == scores.data_ptr()
    places = []
    scores.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    given = torch.randn(2, 3, 4)
    p.backward(given)
    assert places == [given.data_ptr()]


def test_the_softmax_has_a_second_derivative() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax_of(x + 0), x)
    assert torch.autograd.gradgradcheck(lambda x: softmax_of(x + 0), x)


@pytest.mark.parametrize("dtype", TYPES)
def test_torchs_private_backward_pass_of_softmax_may_overwrite_the_gradient_it_is_given(dtype: torch.dtype) -> None:
    """`_softmax_backward_data` is not public: a torch that changes it fails here first."""
    p, gradient = torch.randn(9, 700).softmax(-1).to(dtype), torch.randn(9, 700, dtype=dtype)
    given = gradient.clone()
    backward = torch.ops.aten._softmax_backward_data
    written = backward.out(given, p, -1, dtype, grad_input=given)
    assert written.data_ptr() == given.data_ptr()
    assert torch.equal(written, backward(gradient, p, -1, dtype))


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


def test_torch_says_privately_whether_a_graph_is_kept() -> None:
    """`_get_current_graph_task_keep_graph` is not public: a torch that changes it fails here first."""
    said = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: said.append(torch._C._autograd._get_current_graph_task_keep_graph()))
    torch.autograd.grad(y, x, retain_graph=True)
    torch.autograd.grad(y, x)
    assert said == [True, False]
