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

from txl_lightning.model.kernels.fused import Factors, attend_fused, factors
from txl_lightning.model.positions import VisibleKeys

# Queries of a block in training: larger blocks need more RAM and compute more logits of hidden keys, smaller ones need
# more calls.
BLOCK = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 256}
# Without a gradient nothing is computed twice, so smaller blocks pay. Scores of some of the heads have this many bytes.
QUERIES_AT_ONCE = 64
SCORES_BYTES_AT_ONCE = 1 << 22
PRECISE = (torch.float32, torch.float64)


def attend(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    values_HBKE: Float[Tensor, "H B K E"],
    visible: VisibleKeys,
    dropout: nn.Module,
    bias_HS: Float[Tensor, "H S"] | None = None,
    terms: str = "abcd",
) -> Float[Tensor, "H B T E"]:
    """Return what `fused.attend` returns."""
    of_scores = factors(q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, values_HBKE, visible, bias_HS, terms)
    if not torch.is_grad_enabled() and not (dropout.training and dropout.p):
        return _attend_without_gradient(of_scores)
    T, dtype = q_HBTE.shape[2], values_HBKE.dtype
    whole = BLOCK.get(dtype, T) >= T or not visible.causal
    return (_attend_at_once if whole else _attend_in_blocks)(of_scores, dropout)


def _attend_at_once(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    return _weighted(dropout(softmax(_scores(factors), dropout)), factors.values_HBKE)


def _scores(factors: Factors) -> Float[Tensor, "X T K"]:
    """Return A_ij, and -inf where key j is hidden from query i: X = H·B matrices, multiplied at once."""
    (H, B, K, E), (T, _) = factors.k_HBKE.shape, factors.visible.mask_TK.shape[-2:]
    # In the type of the products, which is exact: autocast would convert the mask for every head and stream.
    mask_XTK = factors.visible.mask_TK.to(factors.k_HBKE.dtype).expand(H, B, T, K).flatten(0, 1)
    content_XTE = factors.content.expand(H, B, T, E).flatten(0, 1)
    scores_XTK = torch.baddbmm(mask_XTK, content_XTE, factors.k_HBKE.flatten(0, 1).mT)
    by_key = factors.by_key()
    if by_key is None:
        return scores_XTK
    if by_key.shape[1] == B:
        return scores_XTK.add_(by_key.flatten(0, 1))
    return (scores_XTK.unflatten(0, (H, B)) + by_key).flatten(0, 1)


def _weighted(probabilities_XTK: Float[Tensor, "X T K"], values: Float[Tensor, "H B K E"]) -> Float[Tensor, "H B T E"]:
    """Return the sum of the values, weighted by the probabilities, which get their type."""
    return torch.bmm(probabilities_XTK.to(values.dtype), values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _attend_in_blocks(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Attend from one block of queries after another, without the keys that come after all queries of a block.

    The backward pass computes a block's probabilities again instead of storing them, which costs less than the
    skipped products save. In bfloat16 it would cost more, so there they are stored.
    """
    size, T = BLOCK[factors.values_HBKE.dtype], factors.visible.mask_TK.shape[-2]
    parts = [factors.part(slice(first, min(first + size, T))) for first in range(0, T, size)]
    if factors.values_HBKE.dtype == torch.bfloat16:
        return torch.cat([_attend_at_once(part, dropout) for part in parts], dim=2)
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=bool(dropout.training and dropout.p))
    return torch.cat([again(_attend_at_once, part, dropout) for part in parts], dim=2)


def _attend_without_gradient(factors: Factors) -> Float[Tensor, "H B T E"]:
    """Attend from a block of queries, and with a group of heads, at a time.

    Keys after all queries of a block are left out, unless most keys are memory: there more calls cost more. Queries
    that see later keys, in a mask that is not causal, are one block. Groups of heads keep the scores small: large
    buffers would be freed and zeroed again in every layer, which costs a quarter of the time.
    """
    (H, B, K, E), T = factors.values_HBKE.shape, factors.visible.mask_TK.shape[-2]
    if factors.visible.places:
        heads_HBTE = factors.values_HBKE.new_zeros(H, B, T, E)
        for place in factors.visible.places:
            heads_HBTE[:, :, place, None] = attend_fused(factors.part(slice(place, place + 1)))
        return heads_HBTE
    dtype, size = factors.values_HBKE.dtype, QUERIES_AT_ONCE if K < 4 * T and factors.visible.causal else max(1, T)
    blocks = []
    for first in range(0, T, size):
        queries = slice(first, min(first + size, T))
        n_rows = queries.stop - first
        # Fused attention in 16 bits, where batched products copy keys and values first; products for many queries.
        way = _attend_by_products if n_rows > QUERIES_AT_ONCE and dtype in PRECISE else attend_fused
        bytes_of_head = B * n_rows * K * dtype.itemsize
        n_heads = max(SCORES_BYTES_AT_ONCE // bytes_of_head, torch.get_num_threads() // B, 1)
        groups = [way(factors.part(queries, slice(h, h + n_heads))) for h in range(0, H, n_heads)]
        blocks.append(groups[0] if len(groups) == 1 else torch.cat(groups))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


def _attend_by_products(factors: Factors) -> Float[Tensor, "H B T E"]:
    """Attend with all scores of these queries and heads in memory."""
    (H, B, _, E), T = factors.values_HBKE.shape, factors.visible.mask_TK.shape[-2]
    added_XTK = factors.added().flatten(0, 1)
    content_XTE = factors.content.expand(H, B, T, E).flatten(0, 1)
    scores_XTK = torch.baddbmm(added_XTK, content_XTE, factors.k_HBKE.flatten(0, 1).mT)
    return _weighted(torch.softmax(scores_XTK, dim=-1, out=scores_XTK), factors.values_HBKE)


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
