"""Parts in which the CPU computes eager attention; another device, and a compiled graph, compute it whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.model.kernels.choice import has_hooks, is_eager_on_cpu

# Queries that are attended from at a time on the CPU; more need more memory and more products of hidden keys, fewer
# need more calls. Measured: BENCHMARKS.md, "Attention in blocks of queries".
BLOCK = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 256}
# Without a gradient nothing is computed twice, so smaller blocks pay. Scores of some of the heads have this many bytes.
QUERIES_AT_ONCE = 64
SCORE_BYTES_AT_ONCE = 1 << 22


def block_size(v_HBKE: Tensor) -> int:
    """Return how many queries are attended from at a time: all, unless on the CPU and not compiled."""
    return BLOCK.get(v_HBKE.dtype, sys.maxsize) if is_eager_on_cpu(v_HBKE) else sys.maxsize


def products_with_table(rows_HXE: Tensor, r_HSE: Tensor) -> Float[Tensor, "H X S"]:
    """Return the products of the rows and the distance vectors r of each head."""
    S, E = r_HSE.shape[1:]
    if r_HSE.dtype == torch.bfloat16 and is_eager_on_cpu(r_HSE):
        is_view = r_HSE.stride()[1:] == (E, 1) and r_HSE.stride(0) > S * E
        if is_view and rows_HXE.shape[1] < S:
            # A batched product would first copy the part of the table that the view shows.
            return torch.stack([rows_XE @ r_SE.T for rows_XE, r_SE in zip(rows_HXE, r_HSE, strict=True)])
        if rows_HXE.shape[1] == 1 and _has_amx():  # there a single column reads the table faster than a single row
            return torch.bmm(r_HSE, rows_HXE.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(rows_HXE, r_HSE.transpose(1, 2))


@cache
def _has_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


def softmax_of(scores_XTK: Tensor, read_by: nn.Module) -> Float[Tensor, "X T K"]:
    """Return the softmax over the keys. On the CPU it overwrites the scores, and its backward pass the gradient.

    New tensors of this size cost as much time as the softmax: the system fills their pages with zeros first. On a GPU
    the probabilities have the scores' type, with sums in float32: autocast would keep all of them in float32.

    Args:
        scores_XTK: scores that nothing else reads.
        read_by: module that alone reads the softmax. If it has hooks, nothing is overwritten: they may keep the
            softmax, and so its gradient.
    """
    if not is_eager_on_cpu(scores_XTK) or has_hooks(read_by):
        with torch.autocast("cuda", enabled=False):
            return torch.softmax(scores_XTK, dim=-1)
    probabilities: Tensor = _Softmax.apply(scores_XTK)
    return probabilities


class _Softmax(torch.autograd.Function):
    """Backward: p · (gradient - Σ p · gradient)."""

    @staticmethod
    def forward(ctx: Any, scores_XTK: Tensor) -> Tensor:
        overwritten = scores_XTK.detach()  # no other function keeps the scores
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


def first_keys(x_HBKE: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return the first keys, or values, in several lengths: ascending, the last is K.

    The backward pass adds the gradient of each to that of the next in place, where the gradient of a slice would first
    be extended with zeros to all K keys.
    """
    parts = []
    for n_keys in lengths[:-1]:
        part, x_HBKE = _FirstKeys.apply(x_HBKE, n_keys)
        parts.append(part)
    return [*parts, x_HBKE]


class _FirstKeys(torch.autograd.Function):
    """Forward: views of the first keys and of all. Backward: overwrites the gradient of all, which nothing else has."""

    @staticmethod
    def forward(ctx: Any, x_HBKE: Tensor, n_keys: int) -> tuple[Tensor, Tensor]:
        ctx.n_keys = n_keys
        return x_HBKE[:, :, :n_keys], x_HBKE.view_as(x_HBKE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_first, of_all = gradients
        total_HBKE = of_all.clone() if torch.is_grad_enabled() else of_all  # create_graph=True
        total_HBKE[:, :, : ctx.n_keys] += of_first
        return total_HBKE, None


def query_blocks(mask_TK: Tensor, K: int) -> Iterator[tuple[slice, int]]:
    """Divide the queries into blocks: yield each with the number of keys up to its last query's own.

    Later keys are hidden from the whole block. On the CPU their scores cost more than the additional calls, unless most
    keys are memory.
    """
    T = mask_TK.shape[-2]
    n = QUERIES_AT_ONCE if is_eager_on_cpu(mask_TK) and K < 4 * T else max(1, T)
    for first in range(0, T, n):
        stop = min(first + n, T)
        yield slice(first, stop), K - T + stop


def head_groups(v_HBKE: Tensor, T: int) -> list[slice]:
    """Divide the heads into groups that are attended with one after the other.

    On the CPU a few heads at a time: large score buffers would be freed and zeroed again in every layer, which
    costs a quarter of the time.
    """
    H, B, K, _ = v_HBKE.shape
    if not is_eager_on_cpu(v_HBKE):
        return [slice(H)]
    n = max(SCORE_BYTES_AT_ONCE // (B * T * K * v_HBKE.element_size()), torch.get_num_threads() // B, 1)
    return [slice(first, first + n) for first in range(0, H, n)]


def products_are_faster(scores_HBTK: Tensor) -> bool:
    """Return whether `attend_by_products` is faster than torch's fused attention: for many queries, but in bfloat16."""
    T, precise = scores_HBTK.shape[2], scores_HBTK.dtype in (torch.float32, torch.float64)
    return T > QUERIES_AT_ONCE and precise and is_eager_on_cpu(scores_HBTK)


def attend_by_products(
    query_HBTE: Tensor, k_HBKE: Tensor, v_HBKE: Tensor, bias_HBTK: Tensor
) -> Float[Tensor, "H B T E"]:
    """Return softmax(query · k + bias) · v without a gradient, with all scores of these heads in memory."""
    keys_XEK = k_HBKE.flatten(0, 1).transpose(1, 2)
    scores_XTK = torch.baddbmm(bias_HBTK.flatten(0, 1), query_HBTE.flatten(0, 1), keys_XEK)
    torch.softmax(scores_XTK, dim=-1, out=scores_XTK)
    return torch.bmm(scores_XTK, v_HBKE.flatten(0, 1)).unflatten(0, v_HBKE.shape[:2])


def widened(mask_TK: Tensor, n_keys: int) -> Tensor:
    """Return the mask of all keys from that of the last ones: those before are visible."""
    return F.pad(mask_TK, (n_keys - mask_TK.shape[-1], 0))


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate parts; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
