"""Attention by torch's flex_attention, which compiles a kernel from the formula of the logits."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from txl_lightning.errors import require
from txl_lightning.model.kernels.eager import Factors


def attend(factors: Factors, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return what `eager.attend` returns, compiled on a GPU and by plain operations on the CPU.

    Raises:
        OptionError: with dropout, memory tokens, a mask for each stream, or gradients on the CPU: flex_attention
            has none of them; on a GPU with heads of less than 16, which its kernels do not have.
    """
    query, keys, values, visible = factors[:4]
    (H, B, K, E), T = values.shape, visible.mask_TK.shape[-2]
    one_mask = "has one mask for all streams; memory_reset=document, memory.reset() and lengths_B need default"
    require(visible.mask_TK.ndim == 2, "attention", "flex", one_mask)
    require(visible.causal, "attention", "flex", "hides all keys after a query; memory tokens need default")
    no_dropout = "has no dropout of attention probabilities; use default"
    require(not (dropout.training and dropout.p), "attention", "flex", no_dropout)
    require(not values.is_cuda or E >= 16, "attention", "flex", "needs model.d_head >= 16; use default")
    query = values.new_zeros(H, B, T, E) if query is None else query.to(values.dtype).expand(H, B, T, E)
    by_key, add_by_key = factors.by_key(), None
    if by_key is not None:
        by_key_HBTK = by_key.expand(H, B, T, K)
        add_by_key = lambda logit, b, h, i, j: logit + by_key_HBTK[h, b, i, j]  # noqa: E731
    on_cpu = values.device.type == "cpu"
    differentiated = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (query, keys, values, by_key)
    )
    require(not (on_cpu and differentiated), "attention", "flex", "has no gradients on the CPU; use default")
    length = K + 1 if visible.attention_len is None else visible.attention_len
    heads_BHTE = (flex_attention if on_cpu else _compiled())(
        *(x.transpose(0, 1) for x in (query, keys, values)),
        score_mod=add_by_key,
        block_mask=_block_mask(T, K, visible.first_key, length, values.device),
        scale=1.0,
    )
    return heads_BHTE.transpose(0, 1)


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


@torch.compiler.disable
@lru_cache(maxsize=8)  # equal in all layers, and in all steps once the memory is full
def _block_mask(n_queries: int, n_keys: int, first_key: int, attention_len: int, device: torch.device) -> BlockMask:
    """Return the blocks of keys that some query sees, and the exact mask inside them."""
    with torch.inference_mode(False):  # validation may come first, and training keeps the mask for its gradients
        first, length = (torch.tensor(value, device=device) for value in (first_key, attention_len))
        newest = n_keys - n_queries
        return create_block_mask(
            lambda b, h, i, j: (j <= newest + i) & (newest + i - j < length) & (j >= first),
            *(None, None, n_queries, n_keys),
            device=device,
        )
