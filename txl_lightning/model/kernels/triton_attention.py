"""Launch of the Triton kernels as one operation with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.model.kernels.triton_kernels import backward_keys_kernel, backward_queries_kernel, forward_kernel

INTERPRETED = type(forward_kernel).__name__ == "InterpretedFunction"  # TRITON_INTERPRET=1: plain Python, on the CPU
# A block of queries or keys has 16 to 64 rows, and this size at most if it has more: a GPU's fast memory holds several.
BLOCK_BYTES = 8 * 1024


@torch.compiler.disable  # a compiled model calls it between two compiled parts
def attend_triton(
    query_HBTE: Float[Tensor, "H B T E"] | None,
    kv_PHBKE: Float[Tensor, "P H B K E"],
    by_distance_HBTS: Float[Tensor, "H B T S"] | None,
    n_queries: int,
    first_key: int,
    attention_len: int,
    dropout: float,
) -> Float[Tensor, "H B T E"]:
    """Return the attention of `attend_fused`.

    Raises:
        OptionError: the tensors are neither on a GPU nor interpreted, or of another type than 16 or 32 bits.
    """
    require(kv_PHBKE.is_cuda or INTERPRETED, "attention", "triton", "needs a GPU; use eager on the CPU")
    types = (torch.float32, torch.bfloat16, torch.float16)
    require(kv_PHBKE.dtype in types, "attention", "triton", f"has 16 or 32 bits a number, not {kv_PHBKE.dtype}")
    lengths = (n_queries, first_key, attention_len)
    return FusedAttention.apply(query_HBTE, kv_PHBKE, by_distance_HBTS, *lengths, dropout)


class FusedAttention(torch.autograd.Function):
    """Attention of `attend_fused` by Triton: keeps the log-sum-exp of every query for backward, no probabilities."""

    @staticmethod
    def forward(
        ctx: Any,
        query_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        by_distance_HBTS: Float[Tensor, "H B T S"] | None,
        n_queries: int,
        first_key: int,
        attention_len: int,
        dropout: float,
    ) -> Float[Tensor, "H B T E"]:
        """Return the output; the seed of dropout is drawn from the generator of the device."""
        _, H, B, _, E = kv_PHBKE.shape
        seed = torch.empty(1, dtype=torch.int64, device=kv_PHBKE.device)
        if dropout:
            seed.random_(1 << 62)
        call = _Call(query_HBTE, kv_PHBKE, by_distance_HBTS, seed, (n_queries, first_key, attention_len), dropout)
        # Laid out for the output projection, which reads the heads of a token as one row.
        out_HBTE = kv_PHBKE.new_empty(B, n_queries, H, E).permute(2, 0, 1, 3)
        logsum_HBT = kv_PHBKE.new_empty((H, B, n_queries), dtype=torch.float32)
        call.launch(forward_kernel, n_queries, out_HBTE, (out_HBTE, logsum_HBT))
        ctx.save_for_backward(query_HBTE, kv_PHBKE, by_distance_HBTS, seed, out_HBTE, logsum_HBT)
        ctx.lengths, ctx.dropout = (n_queries, first_key, attention_len), dropout
        return out_HBTE

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the queries, of keys and values, and of the scores by distance."""
        query, kv, by_distance, seed, out, logsum = ctx.saved_tensors
        d_out = _rows(gradients[0])
        call = _Call(query, kv, by_distance, seed, ctx.lengths, ctx.dropout)
        delta = (d_out.float() * out.float()).sum(-1).contiguous()
        read = (d_out, logsum, delta)
        d_kv = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device)
        d_query = None if query is None else torch.empty(query.shape, dtype=query.dtype, device=kv.device)
        d_by_distance = None
        if by_distance is not None:  # zeros: distances of hidden keys have no gradient
            d_by_distance = torch.zeros(by_distance.shape, dtype=by_distance.dtype, device=kv.device)
        call.launch(backward_keys_kernel, kv.shape[3], d_out, (*read, d_kv[0], d_kv[-1]))
        if query is not None or by_distance is not None:
            written = (x if x is not None else d_kv for x in (d_query, d_by_distance))
            call.launch(backward_queries_kernel, ctx.lengths[0], d_out, (*read, *written))
        return d_query, d_kv, d_by_distance, None, None, None, None


class _Call:
    """Arguments that all kernels of one attention share.

    Args:
        query, kv, by_distance: inputs of the attention.
        seed: of dropout.
        lengths: T, first key, attention length.
        dropout: probability.
    """

    def __init__(
        self,
        query: Tensor | None,
        kv: Tensor,
        by_distance: Tensor | None,
        seed: Tensor,
        lengths: tuple[int, int, int],
        dropout: float,
    ) -> None:
        kv = _rows(kv)
        v = kv[-1]  # stands for what is missing, which no kernel then reads
        q, p = v if query is None else _rows(query), v if by_distance is None else by_distance
        (T, first_key, attention_len), (_, H, B, K, E) = lengths, kv.shape
        width = max(16, triton.next_power_of_2(E))
        rows = min(64, max(16, BLOCK_BYTES // (width * v.element_size())))
        exact = v.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        self.n_matrices, self.rows, self.inputs = H * B, rows, (q, kv[0], v, p)
        self.seed, self.dropout = seed, dropout
        self.strides = (*q.stride()[:3], *v.stride()[:3])
        self.sizes = (*p.stride()[:3], B, T, K, first_key, attention_len)
        self.flags = {
            **{"HEAD": E, "WIDTH": width, "BLOCK_T": rows, "BLOCK_K": rows},
            **{"CONTENT": query is not None, "POSITION": by_distance is not None, "DROPOUT": dropout > 0},
            "PRECISION": "ieee" if exact else "tf32",
        }

    def launch(self, kernel: Any, n_rows: int, out: Tensor, others: tuple[Tensor, ...]) -> None:
        """Run a kernel on blocks of `n_rows` rows of every matrix; `out` has the strides of the output."""
        grid = (triton.cdiv(n_rows, self.rows), self.n_matrices)
        with torch.cuda.device_of(out):
            kernel[grid](
                *self.inputs,
                *others,
                self.seed,
                self.dropout,
                *self.strides,
                *out.stride()[:3],
                *self.sizes,
                **self.flags,
            )


def _rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous: the kernels have no stride for columns."""
    return x if x.stride(-1) == 1 else x.contiguous()
