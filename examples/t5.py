"""A custom position encoding: T5's bias (Raffel et al. 2020). It is relative, so memory works with it.

    export TXL_GUESTS=examples/t5.py
    txl train encoding=t5 hydra.run.dir=runs/t5
    txl evaluate checkpoint=runs/t5/checkpoints/best.ckpt mem_len=256

All commands, multiruns and `resume` find it through the variable.
"""

import math

import torch
from torch import Tensor, nn

from txl_lightning import Encoding, LayerPositions, TransformerXLConfig, register_encoding

BUCKETS = 32
FARTHEST = 128


@register_encoding("t5", terms="ad", extrapolates=True)
class T5Bias(Encoding):
    """A_ij = (q_i·k_j + b_h(bucket of i - j)) / sqrt(E), with trained biases b_h shared by all layers."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.bias = nn.Parameter(
            torch.empty(self.n_head, BUCKETS)
        )  # starts at zero, as its name ends with bias

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return the biases for the distances K, …, 0: 16 buckets with one distance, 16 that grow up to distance
        128.
        """
        distances = torch.arange(n_keys, -1, -1, device=like.device)
        if clamp_len > 0:
            distances = distances.clamp(max=clamp_len)
        single = BUCKETS // 2
        logarithms = (distances / single).clamp(min=1).log()
        share = logarithms / math.log(FARTHEST / single)
        wide = (single + single * share).long().clamp(max=BUCKETS - 1)
        buckets = distances.where(distances < single, wide)
        positions = LayerPositions(bias_HS=self.bias[:, buckets])
        return [positions] * self.n_layer
