"""Relative attention by torch's flex_attention, which compiles a kernel from the formula of the score."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from txl_lightning.errors import require


def attend_flex(
    query_HBTE: Float[Tensor, "H B T E"] | None,
    kv_PHBKE: Float[Tensor, "P H B K E"],
    by_distance_HBTS: Float[Tensor, "H B T S"] | None,
    n_queries: int,
    first_key: int,
    attention_len: int,
    dropout: float,
) -> Float[Tensor, "H B T E"]:
    """Return the attention of `attend_fused`, compiled on a GPU and by plain operations on the CPU.

    Raises:
        OptionError: with dropout, or with gradients on the CPU: flex_attention has neither; on a GPU with heads of less
            than 16, which its kernels do not have.
    """
    require(dropout == 0, "attention", "flex", "has no dropout of attention probabilities; use eager or triton")
    on_cpu, inputs = kv_PHBKE.device.type == "cpu", (query_HBTE, kv_PHBKE, by_distance_HBTS)
    differentiated = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    require(not (on_cpu and differentiated), "attention", "flex", "has no gradients on the CPU; use eager")
    _, H, B, K, E = kv_PHBKE.shape
    require(not kv_PHBKE.is_cuda or E >= 16, "attention", "flex", "needs model.d_head >= 16; use eager or triton")
    query = kv_PHBKE.new_zeros(H, B, n_queries, E) if query_HBTE is None else query_HBTE
    add_by_distance = None
    if by_distance_HBTS is not None:  # columns beyond K belong to hidden keys
        add_by_distance = lambda score, b, h, i, j: score + by_distance_HBTS[h, b, i, (n_queries - i + j).clamp(max=K)]  # noqa: E731
    out_BHTE = (flex_attention if on_cpu else _compiled())(
        *(x.transpose(0, 1) for x in (query, kv_PHBKE[0], kv_PHBKE[-1])),
        score_mod=add_by_distance,
        block_mask=_block_mask(n_queries, K, first_key, attention_len, kv_PHBKE.device),
        scale=1.0,
    )
    return out_BHTE.transpose(0, 1)


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
