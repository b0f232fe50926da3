"""The encoding of Shaw et al. 2018, as the paper's code has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.encodings.base import Encoding, LayerPositions, register_encoding


@register_encoding("shaw", "abcd", table="distances")
class ShawEncoding(Encoding):
    """A trained vector (b) and bias (d) of every distance below `table_len`, and u (c), for every layer.

    That is how the paper's code has it, which made the numbers of Table 6. The paper's text has terms (a)
    and (b) alone: `terms="ab"`. Distances beyond the table repeat its farthest row; `clamp_len` shortens
    the table. Row 0 is the farthest distance.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        table = (config.n_layer, config.required_table_len, config.n_head, config.d_head)
        terms = config.active_terms
        self.u = nn.Parameter(torch.empty(config.n_layer, *table[2:])) if "c" in terms else None
        self.table = nn.Parameter(torch.empty(table)) if "b" in terms else None
        self.distance_bias = nn.Parameter(torch.empty(table[:3])) if "d" in terms else None
        self.table_len = config.required_table_len

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Table rows and biases of the distances K, …, 0."""
        farthest = min(self.table_len, clamp_len) - 1 if clamp_len > 0 else self.table_len - 1
        distances = torch.arange(n_keys, -1, -1, device=like.device).clamp(max=farthest)
        rows = self.table_len - 1 - distances
        return [
            LayerPositions(
                u_HE=None if self.u is None else self.u[n],
                table_HSE=None if self.table is None else self.table[n][rows].transpose(0, 1),
                bias_HS=None if self.distance_bias is None else self.distance_bias[n][rows].T,
            )
            for n in range(self.n_layer)
        ]
