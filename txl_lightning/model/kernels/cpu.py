"""Attention on the CPU, in parts that stay in its caches; what no one reads again is overwritten.

New tensors of the size of the logits cost as much time as the softmax: the system fills their pages with zeros first.
BENCHMARKS.md, "Attention in blocks of queries" and "Evaluation", has what each of these ways gives.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from txl_lightning.model.kernels import eager
from txl_lightning.model.kernels.eager import Factors

# Queries of a block in training: larger blocks need more RAM and compute more logits of hidden keys, smaller ones need
# more calls.
BLOCK = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 256}
# Without a gradient nothing is computed twice, so smaller blocks pay. Logits of some of the heads have this many bytes.
QUERIES_AT_ONCE = 64
LOGITS_BYTES_AT_ONCE = 1 << 22
PRECISE = (torch.float32, torch.float64)


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return what `eager.attend` returns."""
    if not torch.is_grad_enabled() and not (dropout.training and dropout.p):
        return _attend_without_gradient(factors, dropout)
    n_queries = factors.visible.mask_TK.shape[-2]
    whole = n_queries <= BLOCK.get(factors.values.dtype, n_queries) or not factors.visible.causal
    return (_attend_at_once if whole else _attend_in_blocks)(factors, dropout)


def _attend_at_once(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    return eager.weighted(dropout(softmax(eager.logits(factors), dropout)), factors.values)


def _attend_in_blocks(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Attend from one block of queries after another, without the keys that come after all queries of a block.

    The backward pass computes a block's probabilities again instead of storing them, which costs less than the
    skipped products save. In bfloat16 it would cost more, so there they are stored.
    """
    size, T = BLOCK[factors.values.dtype], factors.visible.mask_TK.shape[-2]
    parts = [factors.part(slice(first, min(first + size, T))) for first in range(0, T, size)]
    if factors.values.dtype == torch.bfloat16:
        return torch.cat([_attend_at_once(part, dropout) for part in parts], dim=2)
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=bool(dropout.training and dropout.p))
    return torch.cat([again(_attend_at_once, part, dropout) for part in parts], dim=2)


def _attend_without_gradient(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Attend from a block of queries, and with a group of heads, at a time.

    Keys after all queries of a block are left out, unless most keys are memory: there more calls cost more. Queries
    that see later keys, in a mask that is not causal, are one block. Groups of
    heads keep the logits small: large buffers would be freed and zeroed again in every layer, which costs a quarter of
    the time.
    """
    (H, B, K, _), T = factors.values.shape, factors.visible.mask_TK.shape[-2]
    dtype, size = factors.values.dtype, QUERIES_AT_ONCE if K < 4 * T and factors.visible.causal else max(1, T)
    blocks = []
    for first in range(0, T, size):
        queries = slice(first, min(first + size, T))
        n_rows = queries.stop - first
        bytes_of_head = B * n_rows * K * dtype.itemsize
        n_heads = max(LOGITS_BYTES_AT_ONCE // bytes_of_head, torch.get_num_threads() // B, 1)
        groups = [_part(factors.part(queries, slice(h, h + n_heads)), dropout) for h in range(0, H, n_heads)]
        blocks.append(groups[0] if len(groups) == 1 else torch.cat(groups))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


def _part(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Attend with all logits of these queries and heads in memory where that is faster than fused attention."""
    query, keys, values = factors[:3]
    if query is None:
        return _attend_at_once(factors, dropout)
    if factors.visible.mask_TK.shape[-2] <= QUERIES_AT_ONCE or values.dtype not in PRECISE:
        return eager.attend_fused(factors)
    bias_HBTK = eager.fused_bias(factors)
    rows_XTE = query.expand(*bias_HBTK.shape[:3], -1).flatten(0, 1)
    logits_XTK = torch.baddbmm(bias_HBTK.flatten(0, 1), rows_XTE, keys.flatten(0, 1).mT)
    return eager.weighted(torch.softmax(logits_XTK, dim=-1, out=logits_XTK), values)


def is_eager_on_cpu(tensor: Tensor) -> bool:
    """Return whether operations on a tensor run one by one on the CPU: not on another device or in a compiled graph.

    There the CPU computes in parts and overwrites what no one reads again.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks, its own or those of all modules, may keep a module's inputs, outputs or gradients."""
    own = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(own) or bool(_has_any_global_hook())


def softmax(logits_XTK: Tensor, read_by: nn.Module) -> Float[Tensor, "X T K"]:
    """Return the softmax over the keys; it overwrites the logits, and its backward pass the gradient.

    Args:
        logits_XTK: logits that nothing else reads.
        read_by: module that alone reads the softmax. If it has hooks, nothing is overwritten: they may keep the
            softmax, and so its gradient.
    """
    if has_hooks(read_by):
        return torch.softmax(logits_XTK, dim=-1)
    probabilities: Tensor = _Softmax.apply(logits_XTK)
    return probabilities


class _Softmax(torch.autograd.Function):
    """Backward: p · (gradient - Σ p · gradient)."""

    @staticmethod
    def forward(ctx: Any, logits_XTK: Tensor) -> Tensor:
        overwritten = logits_XTK.detach()  # no other function keeps the logits
        p_XTK = torch.softmax(overwritten, dim=-1, out=overwritten)
        ctx.save_for_backward(p_XTK)
        return p_XTK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient_XTK,), (p_XTK,) = gradients, ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            weighted_XTK = p_XTK * gradient_XTK
            return weighted_XTK - p_XTK * weighted_XTK.sum(-1, keepdim=True)
        # A gradient such as that of a sum is expanded from one number, and has no room for the result.
        room_XTK = gradient_XTK if gradient_XTK.is_contiguous() else torch.empty_like(p_XTK)
        backward = torch.ops.aten._softmax_backward_data.out
        result: Tensor = backward(gradient_XTK, p_XTK, -1, p_XTK.dtype, grad_input=room_XTK)
        return result
